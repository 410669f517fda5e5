package config

import (
	"bytes"
	"fmt"
	"os"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/afxdp-project/afxdp/pkg/netdev"
)

const (
	examplePath = "../../deployments/config.example.yaml"
	docsPath    = "../../docs/configuration.md"
)

// schema returns the path of every field below a type, for example "pools.busyPoll.budget".
func schema(t reflect.Type, prefix string) []string {
	var fields []string
	for i := range t.NumField() {
		f := t.Field(i)
		name := childField(prefix, fieldName(f))
		fields = append(fields, name)
		inner := f.Type
		if inner.Kind() == reflect.Slice {
			inner = inner.Elem()
		}
		if inner.Kind() == reflect.Struct && inner != reflect.TypeFor[QueueSet]() {
			fields = append(fields, schema(inner, name)...)
		}
	}
	return fields
}

func TestEveryFieldHasAName(t *testing.T) {
	fields := schema(reflect.TypeFor[Config](), "")
	for _, f := range fields {
		if f == "" || strings.HasSuffix(f, ".") {
			t.Errorf("a field has no yaml tag: %q", f)
		}
	}
	if len(fields) < 20 {
		t.Errorf("only %d fields found", len(fields))
	}
}

func TestExampleIsValidAndShowsEveryField(t *testing.T) {
	cfg, warnings, err := Load(examplePath)
	if err != nil || len(warnings) > 0 {
		t.Fatalf("%v, %v", warnings, err)
	}
	data, err := os.ReadFile(examplePath)
	if err != nil {
		t.Fatal(err)
	}
	var root yaml.Node
	if err := yaml.Unmarshal(data, &root); err != nil {
		t.Fatal(err)
	}
	shown := map[string]bool{}
	var walk func(n *yaml.Node, field string)
	walk = func(n *yaml.Node, field string) {
		shown[field] = true
		for i, c := range n.Content {
			switch {
			case n.Kind != yaml.MappingNode:
				walk(c, field)
			case i%2 == 1:
				walk(c, childField(field, n.Content[i-1].Value))
			}
		}
	}
	walk(&root, "")
	for _, f := range schema(reflect.TypeFor[Config](), "") {
		if !shown[f] {
			t.Errorf("the example does not show %s", f)
		}
	}

	// The example says that its values are the defaults.
	fast, ok := cfg.Pool("fast")
	if !ok {
		t.Fatal("no pool fast")
	}
	want := DefaultPool()
	want.Name, want.NICs, want.Queues = fast.Name, fast.NICs, fast.Queues
	want.BusyPoll.IRQCPUs = fast.BusyPoll.IRQCPUs
	if !reflect.DeepEqual(fast, want) {
		t.Errorf("the example shows other values than the defaults:\n%+v\n%+v", fast, want)
	}
}

func TestDocumentationListsEveryFieldWithItsDefault(t *testing.T) {
	docs, err := os.ReadFile(docsPath)
	if err != nil {
		t.Fatal(err)
	}
	rows := map[string]string{}
	for line := range strings.Lines(string(docs)) {
		if cells := strings.Split(line, "|"); len(cells) >= 4 {
			rows[strings.Trim(cells[1], " `")] = strings.Trim(cells[2], " `")
		}
	}
	defaults := map[string]string{}
	var collect func(v reflect.Value, prefix string)
	collect = func(v reflect.Value, prefix string) {
		for i := range v.NumField() {
			name := childField(prefix, fieldName(v.Type().Field(i)))
			switch value := v.Field(i).Interface().(type) {
			case BusyPoll, Limits:
				collect(v.Field(i), name)
			case Selector:
				collect(v.Field(i), name)
				defaults[name] = "required"
			case time.Duration:
				defaults[name] = strings.ReplaceAll(value.String(), "µ", "u")
			case []string, []int, netdev.CPUs:
				defaults[name] = "any"
			default:
				defaults[name] = fmt.Sprint(value)
			}
		}
	}
	collect(reflect.ValueOf(DefaultPool()), "")
	defaults["name"] = "required"
	for name, want := range defaults {
		if got, ok := rows[name]; !ok || got != want {
			t.Errorf("documentation of %s: default %q, want %q", name, got, want)
		}
	}
	for _, f := range schema(reflect.TypeFor[Config](), "") {
		if !strings.HasPrefix(f, "pools.") && rows[f] == "" {
			t.Errorf("documentation leaves out %s", f)
		}
	}
	// Bounds that the text repeats.
	for field, bound := range map[string]string{
		"pools":                      fmt.Sprintf("at most %d pools", MaxPools),
		"nics.numaNodes":             fmt.Sprintf("0 to %d", MaxNUMANode),
		"queues":                     fmt.Sprintf("0 to %d", MaxQueue),
		"busyPoll.budget":            fmt.Sprintf("0 to %d", MaxBudget),
		"busyPoll.timeout":           fmt.Sprintf("0 to %s", MaxTimeout),
		"busyPoll.deferHardIRQs":     fmt.Sprintf("0 to %d", MaxDeferHardIRQs),
		"busyPoll.groFlushTimeout":   fmt.Sprintf("0 to %s", MaxGROFlush),
		"busyPoll.irqSuspendTimeout": fmt.Sprintf("0 to %s", MaxIRQSuspend),
		"limits.maxUMEM":             fmt.Sprintf("%s to %s", Bytes(MinUMEM), Bytes(MaxUMEM)),
		"limits.maxFrames":           fmt.Sprintf("1 to %d", MaxFrames),
		"limits.maxRingSize":         fmt.Sprintf("1 to %d", MaxRingSize),
		"limits.maxConnections":      fmt.Sprintf("1 to %d", MaxConnections),
	} {
		row := regexp.MustCompile("(?m)^\\| `" + regexp.QuoteMeta(field) + "` .*$").Find(docs)
		if !bytes.Contains(row, []byte(bound)) {
			t.Errorf("documentation of %s does not say %q", field, bound)
		}
	}
}

func TestDocumentationsExampleIsValid(t *testing.T) {
	docs, err := os.ReadFile(docsPath)
	if err != nil {
		t.Fatal(err)
	}
	_, rest, ok := strings.Cut(string(docs), "```yaml\n")
	text, _, ok2 := strings.Cut(rest, "```")
	if !ok || !ok2 {
		t.Fatal("no example")
	}
	mustParse(t, text)
}
