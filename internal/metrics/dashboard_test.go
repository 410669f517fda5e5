package metrics

import (
	"encoding/json"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const dashboardPath = "../../charts/afxdp/dashboards/afxdp.json"

// strings in a dashboard, by the name of their field.
func collect(v any, field string, all map[string][]string) {
	switch v := v.(type) {
	case map[string]any:
		for name, inner := range v {
			collect(inner, name, all)
		}
	case []any:
		for _, inner := range v {
			collect(inner, field, all)
		}
	case string:
		all[field] = append(all[field], v)
	}
}

// The dashboard shows every metric, and asks for none that there is not, nor for labels that a metric does not have.
func TestDashboardShowsEveryMetric(t *testing.T) {
	raw, err := os.ReadFile(dashboardPath)
	if err != nil {
		t.Fatal(err)
	}
	var dashboard struct {
		UID        string
		Panels     []struct{ ID int }
		Templating any
	}
	if err := json.Unmarshal(raw, &dashboard); err != nil {
		t.Fatal(err)
	}
	ids := make(map[int]bool)
	for _, p := range dashboard.Panels {
		if p.ID == 0 || ids[p.ID] {
			t.Errorf("panel id %d is none, or there twice", p.ID)
		}
		ids[p.ID] = true
	}
	var whole any
	if err := json.Unmarshal(raw, &whole); err != nil {
		t.Fatal(err)
	}
	fields := make(map[string][]string)
	collect(whole, "", fields)
	for _, uid := range fields["uid"] {
		if uid != "${datasource}" && uid != dashboard.UID {
			t.Errorf("a data source is fixed: %q", uid)
		}
	}
	have := gathered(t, newMetrics(full))
	shown := make(map[string]bool)
	for _, expr := range slices.Concat(fields["expr"], fields["definition"]) {
		names := regexp.MustCompile(`afxdp_\w+`).FindAllString(expr, -1)
		if len(names) == 0 {
			t.Errorf("no metric of ours in %s", expr)
		}
		var labels []string // of its metrics: where there are several, they have the same
		for _, name := range names {
			i := slices.IndexFunc(have, func(row string) bool { return known(name, []string{row}) })
			if i < 0 {
				t.Errorf("there is no %s: %s", name, expr)
				continue
			}
			row := strings.Fields(have[i])
			shown[row[0]] = true
			labels = append(row[2:], "instance")
			if row[1] == "histogram" {
				labels = append(labels, "le")
			}
		}
		used := regexp.MustCompile(`(\w+)=~?"`).FindAllStringSubmatch(expr, -1)
		for _, by := range regexp.MustCompile(`by \(([^)]*)\)`).FindAllStringSubmatch(expr, -1) {
			for l := range strings.SplitSeq(by[1], ", ") {
				used = append(used, []string{"", l})
			}
		}
		for _, l := range used {
			if !slices.Contains(labels, l[1]) {
				t.Errorf("%s has no label %s: %s", names[0], l[1], expr)
			}
		}
	}
	for _, row := range have {
		if name, _, _ := strings.Cut(row, " "); !shown[name] {
			t.Errorf("the dashboard does not show %s", name)
		}
	}
}
