package config

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// FieldError is one mistake in a configuration file.
type FieldError struct {
	File         string
	Line, Column int    // from 1; 0 when not known
	Field        string // for example "pools[1].busyPoll.budget"; empty when the mistake is no field's
	Msg          string
}

func (e *FieldError) Error() string {
	var b strings.Builder
	b.WriteString(e.File)
	if e.Line > 0 {
		fmt.Fprintf(&b, ":%d", e.Line)
		if e.Column > 0 {
			fmt.Fprintf(&b, ":%d", e.Column)
		}
	}
	b.WriteString(": ")
	if e.Field != "" {
		b.WriteString(e.Field + ": ")
	}
	b.WriteString(e.Msg)
	return b.String()
}

// Errors are all mistakes of a configuration file, in the order of the file.
type Errors []*FieldError

// Error returns one line for each mistake.
func (e Errors) Error() string {
	lines := make([]string, len(e))
	for i, err := range e {
		lines[i] = err.Error()
	}
	return strings.Join(lines, "\n")
}

// Unwrap returns the mistakes one by one.
func (e Errors) Unwrap() []error {
	errs := make([]error, len(e))
	for i, err := range e {
		errs[i] = err
	}
	return errs
}

// Warning is something in a valid configuration that hardly does what was meant.
type Warning FieldError

// String returns the warning in the form of an error: place, field, message.
func (w Warning) String() string { return (*FieldError)(&w).Error() }

// sort orders the mistakes as in the file. One without a line ("too many") stays last.
func (e Errors) sort() {
	slices.SortStableFunc(e, func(a, b *FieldError) int {
		return cmp.Or(compareLines(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
	})
}

func compareLines(a, b int) int {
	if (a == 0) != (b == 0) {
		return cmp.Compare(b, a)
	}
	return cmp.Compare(a, b)
}

func sortWarnings(w []Warning) {
	slices.SortStableFunc(w, func(a, b Warning) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
	})
}
