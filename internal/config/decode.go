package config

import (
	"encoding"
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

const (
	maxValues = 100_000 // values after the aliases are followed: what an alias bomb can make us do
	maxErrors = 100     // mistakes that are reported
)

// place is where a value stands in the file, and its text.
type place struct {
	line, column int
	text         string
}

// reader turns a YAML tree into a Config and collects the mistakes.
type reader struct {
	file     string
	places   map[string]place // of every field that was given, valid or not
	values   int
	errs     Errors
	warnings []Warning
	stopped  bool // no use going on

	rootIsWrong bool // the document has no fields
}

// report adds a mistake.
func (r *reader) report(at place, field, format string, args ...any) {
	if r.stopped {
		return
	}
	if len(r.errs) == maxErrors {
		r.stop(place{}, "", fmt.Sprintf("more than %d mistakes: the rest is not shown", maxErrors))
		return
	}
	msg := fmt.Sprintf(format, args...)
	r.errs = append(r.errs, &FieldError{File: r.file, Line: at.line, Column: at.column, Field: field, Msg: msg})
}

// stop adds the last mistake.
func (r *reader) stop(at place, field, msg string) {
	if !r.stopped {
		r.stopped = true
		r.errs = append(r.errs, &FieldError{File: r.file, Line: at.line, Column: at.column, Field: field, Msg: msg})
	}
}

// decode stores a node into v and remembers where the field stands. After a mistake v keeps its default.
func (r *reader) decode(n *yaml.Node, field string, v reflect.Value) {
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	at := place{n.Line, n.Column, n.Value}
	if r.values++; r.values > maxValues {
		r.stop(at, field, fmt.Sprintf("the file has more than %d values, aliases followed", maxValues))
	}
	if r.stopped {
		return
	}
	r.places[field] = at
	if n.ShortTag() == "!!null" {
		r.report(at, field, "has no value: give it one or remove it")
		return
	}
	if v.Type() == reflect.TypeFor[time.Duration]() {
		r.duration(n, at, field, v)
		return
	}
	if u, ok := v.Addr().Interface().(encoding.TextUnmarshaler); ok {
		what := "a plain value"
		if _, isSet := u.(*QueueSet); isSet {
			what = "numbers and ranges in one value such as 1-3,8"
		}
		if !r.want(n, at, field, what, "!!str", "!!int", "!!bool", "!!float") {
			return
		}
		if err := u.UnmarshalText([]byte(n.Value)); err != nil {
			r.report(at, field, "%v", err)
		}
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		if r.want(n, at, field, "fields", "!!map") {
			r.fields(n, field, v)
		}
	case reflect.Slice:
		if r.want(n, at, field, "a list", "!!seq") {
			r.list(n, at, field, v)
		}
	case reflect.String:
		if r.want(n, at, field, "a string", "!!str") {
			v.SetString(n.Value)
		}
	case reflect.Bool:
		if n.Kind == yaml.ScalarNode && n.Style == 0 && (n.Value == "on" || n.Value == "off") {
			v.SetBool(n.Value == "on") // booleans of YAML 1.1, strings to this reader
			return
		}
		if r.want(n, at, field, "true or false", "!!bool") {
			v.SetBool(strings.EqualFold(n.Value, "true"))
		}
	case reflect.Int:
		if !r.want(n, at, field, "a whole number", "!!int", "!!float") {
			return
		}
		if !isDecimal(n.Value) {
			r.report(at, field, "want a whole decimal number, not %s", shorten(n.Value))
			return
		}
		// Beyond the range ParseInt returns the nearest end of it, which no field's bounds contain.
		i, _ := strconv.ParseInt(n.Value, 10, strconv.IntSize)
		v.SetInt(i)
	default:
		panic(fmt.Sprintf("config: field %s has a type that cannot be read: %s", field, v.Type()))
	}
}

// want reports whether a node has one of the tags, and the mistake when it has not.
func (r *reader) want(n *yaml.Node, at place, field, what string, tags ...string) bool {
	tag := n.ShortTag()
	kind := map[yaml.Kind]string{yaml.MappingNode: "!!map", yaml.SequenceNode: "!!seq"}[n.Kind]
	for _, t := range tags {
		// An explicit tag may claim what the node is not, such as !!map before a list.
		if t == tag && (kind == "" && t != "!!map" && t != "!!seq" || kind == t) {
			return true
		}
	}
	hint := ""
	if n.Kind == yaml.ScalarNode && strings.HasPrefix(tag, "!!") {
		switch what {
		case "a string":
			hint = fmt.Sprintf(": write %q", shorten(n.Value))
		case "a list":
			hint = fmt.Sprintf(": write [%s]", shorten(n.Value))
		}
	}
	r.report(at, field, "want %s, not %s%s", what, describe(n), hint)
	return false
}

// describe says what a node is, in the words of a message.
func describe(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "fields"
	case yaml.SequenceNode:
		return "a list"
	}
	switch tag := n.ShortTag(); tag {
	case "!!str":
		return fmt.Sprintf("the string %q", shorten(n.Value))
	case "!!int", "!!float":
		return "the number " + shorten(n.Value)
	case "!!bool":
		return "the boolean " + shorten(n.Value)
	default:
		return fmt.Sprintf("%q tagged %s", shorten(n.Value), shorten(tag))
	}
}

// list decodes the elements of a list, pools on top of their defaults.
func (r *reader) list(n *yaml.Node, at place, field string, v reflect.Value) {
	if len(n.Content) == 0 && v.Type().Elem() != reflect.TypeFor[Pool]() {
		r.report(at, field, "is an empty list")
		return
	}
	for i, c := range n.Content {
		elem := reflect.New(v.Type().Elem()).Elem()
		if elem.Type() == reflect.TypeFor[Pool]() {
			elem.Set(reflect.ValueOf(DefaultPool()))
		}
		r.decode(c, fmt.Sprintf("%s[%d]", field, i), elem)
		if r.stopped {
			return
		}
		v.Set(reflect.Append(v, elem)) // also after a mistake: the index must stay that of the file
	}
}

// fields decodes a mapping into a struct.
func (r *reader) fields(n *yaml.Node, parent string, v reflect.Value) {
	seen := map[string]int{}
	for i := 0; i+1 < len(n.Content) && !r.stopped; i += 2 {
		key := n.Content[i]
		if key.Kind == yaml.AliasNode {
			key = key.Alias
		}
		at := place{n.Content[i].Line, n.Content[i].Column, key.Value}
		field := childField(parent, shorten(key.Value))
		switch line, twice := seen[key.Value]; {
		case key.Kind != yaml.ScalarNode:
			r.report(at, parent, "a field's name cannot be %s", describe(key))
			continue
		case key.ShortTag() == "!!merge":
			r.report(at, field, "merge keys are not supported: repeat the fields")
			continue
		case twice:
			r.report(at, field, "is given twice, first in line %d", line)
			continue
		}
		seen[key.Value] = at.line
		f, ok := fieldByName(v, key.Value)
		if !ok {
			r.report(at, field, "unknown field%s", suggest(key.Value, v.Type()))
			continue
		}
		r.decode(n.Content[i+1], field, f)
	}
}

// fieldByName returns the field of a struct that has a name in the file.
func fieldByName(v reflect.Value, name string) (reflect.Value, bool) {
	for i := range v.NumField() {
		if fieldName(v.Type().Field(i)) == name {
			return v.Field(i), true
		}
	}
	return reflect.Value{}, false
}

func fieldName(f reflect.StructField) string { return f.Tag.Get("yaml") }

// duration stores a time with a unit.
func (r *reader) duration(n *yaml.Node, at place, field string, v reflect.Value) {
	if !r.want(n, at, field, "a time such as 20us", "!!str", "!!int", "!!float") {
		return
	}
	if strings.Trim(n.Value, "-+.0123456789") == "" && n.Value != "0" {
		r.report(at, field, "%s has no unit: write %[1]sns, %[1]sus, %[1]sms or %[1]ss", shorten(n.Value))
		return
	}
	d, err := time.ParseDuration(n.Value)
	if err != nil {
		r.report(at, field, "%q is no time: want a number and a unit (ns, us, ms, s) such as 20us", shorten(n.Value))
		return
	}
	v.SetInt(int64(d))
}

func childField(parent, name string) string {
	if parent == "" {
		return name
	}
	return parent + "." + name
}
