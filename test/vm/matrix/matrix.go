// Package matrix holds what was found about kernels, drivers and modes against a table of what is expected.
package matrix

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"

	"github.com/afxdp-project/afxdp/test/vm/report"
)

// Matrix is a table of what is expected.
type Matrix []Expectation

// Expectation is what is expected of one row. Fields are paths into the row's JSON, such as busyPoll.active.
type Expectation struct {
	Kernel string `json:"kernel"`
	Driver string `json:"driver"`
	Mode   string `json:"mode"`

	Is       map[string]any     `json:"is,omitempty"`       // equal; null: absent
	Contains map[string]string  `json:"contains,omitempty"` // text with this in it
	AtLeast  map[string]float64 `json:"atLeast,omitempty"`
	AtMost   map[string]float64 `json:"atMost,omitempty"`
}

func (e Expectation) String() string { return name(e.Kernel, e.Driver, e.Mode) }

func name(kernel, driver, mode string) string {
	return fmt.Sprintf("kernel %s, %s, %s", kernel, driver, mode)
}

// Read reads a table from a JSON file.
func Read(path string) (m Matrix, err error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(&m); err != nil {
		return nil, fmt.Errorf("decode %s: %w", path, err)
	}
	return m, nil
}

// Check holds the rows of a kernel against the table. Each fault names row and field.
func (m Matrix) Check(class string, rows []report.Row) (faults []string) {
	got := make(map[string]any)
	for _, r := range rows {
		v, err := plain(r)
		if err != nil {
			return []string{err.Error()}
		}
		got[name(r.Kernel, r.Driver, r.Mode)] = v
	}
	for _, want := range m {
		if want.Kernel != class {
			continue
		}
		row, ok := got[want.String()]
		if !ok {
			faults = append(faults, want.String()+": the row is missing")
			continue
		}
		delete(got, want.String())
		for _, f := range want.faults(row) {
			faults = append(faults, fmt.Sprintf("%s: %s", want, f))
		}
	}
	for row := range got {
		faults = append(faults, row+": the matrix has no such row")
	}
	slices.Sort(faults)
	return faults
}

func (e Expectation) faults(row any) (faults []string) {
	bad := func(field string, got any, want string, args ...any) {
		text, _ := json.Marshal(got)
		faults = append(faults, fmt.Sprintf("%s is %s, want %s", field, text, fmt.Sprintf(want, args...)))
	}
	for field, want := range e.Is {
		if got := at(row, field); !reflect.DeepEqual(got, want) {
			text, _ := json.Marshal(want)
			bad(field, got, "%s", text)
		}
	}
	for field, want := range e.Contains {
		if got, is := at(row, field).(string); !is || !strings.Contains(got, want) {
			bad(field, at(row, field), "a text with %q", want)
		}
	}
	for field, want := range e.AtLeast {
		if got, is := at(row, field).(float64); !is || got < want {
			bad(field, at(row, field), "at least %v", want)
		}
	}
	for field, want := range e.AtMost {
		if got, is := at(row, field).(float64); !is || got > want {
			bad(field, at(row, field), "at most %v", want)
		}
	}
	return faults
}

// plain turns a row into maps, as its JSON is.
func plain(r report.Row) (v any, err error) {
	data, err := json.Marshal(r)
	return v, errors.Join(err, json.Unmarshal(data, &v))
}

// at returns a field of a row by its path; nil when it is absent.
func at(v any, path string) any {
	for key := range strings.SplitSeq(path, ".") {
		m, is := v.(map[string]any)
		if !is {
			return nil
		}
		v = m[key]
	}
	return v
}
