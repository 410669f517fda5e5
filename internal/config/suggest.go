package config

import (
	"fmt"
	"reflect"
	"strings"
)

// suggest returns the end of a message about a field that a struct does not have: the one that was probably meant,
// here or one level down, else all that there are.
func suggest(name string, t reflect.Type) string {
	best, bestDistance := "", 3
	try := func(known, shown string) {
		d := distance(strings.ToLower(name), strings.ToLower(known))
		if d < bestDistance && 2*d < len(known) {
			best, bestDistance = shown, d
		}
	}
	var all []string
	for i := range t.NumField() {
		f := t.Field(i)
		all = append(all, fieldName(f))
		try(fieldName(f), fieldName(f))
	}
	for i := range t.NumField() {
		f := t.Field(i)
		if f.Type.Kind() != reflect.Struct {
			continue
		}
		for j := range f.Type.NumField() {
			if child := fieldName(f.Type.Field(j)); child != "" {
				try(child, fieldName(f)+"."+child)
			}
		}
	}
	if best != "" {
		return fmt.Sprintf(": did you mean %s?", best)
	}
	return ": want one of " + strings.Join(all, ", ")
}

// distance counts the bytes to insert, delete or replace, or the neighbours to swap, that turn one string into another.
// Long strings are cut: they are no misspelt field.
func distance(a, b string) int {
	const limit = 64
	a, b = a[:min(len(a), limit)], b[:min(len(b), limit)]
	rows := make([][]int, len(a)+1)
	for i := range rows {
		rows[i] = make([]int, len(b)+1)
		rows[i][0] = i
	}
	for j := range b {
		rows[0][j+1] = j + 1
	}
	for i := 1; i <= len(a); i++ {
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			d := min(rows[i-1][j]+1, rows[i][j-1]+1, rows[i-1][j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				d = min(d, rows[i-2][j-2]+1)
			}
			rows[i][j] = d
		}
	}
	return rows[len(a)][len(b)]
}
