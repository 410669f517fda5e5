package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
	"slices"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
)

// MaxSize is the largest configuration file in bytes.
const MaxSize = 1 << 20

// Load reads a configuration file. A file with mistakes is refused as a whole: the error is [Errors] then.
func Load(path string) (*Config, []Warning, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, nil, fmt.Errorf("read configuration: %w", err)
	}
	defer func() { _ = f.Close() }()
	data, err := io.ReadAll(io.LimitReader(f, MaxSize+1))
	if err != nil {
		return nil, nil, fmt.Errorf("read configuration: %w", err)
	}
	return Parse(path, data)
}

// Parse reads a configuration from memory; name stands for the file in messages. The error is [Errors].
func Parse(name string, data []byte) (*Config, []Warning, error) {
	if len(data) > MaxSize {
		return nil, nil, Errors{{File: name, Msg: fmt.Sprintf("the file is larger than %s", Bytes(MaxSize))}}
	}
	if err := checkText(name, data); err != nil {
		return nil, nil, Errors{err}
	}
	r := &reader{file: name, places: map[string]place{}}
	cfg := &Config{}
	r.documents(data, cfg)
	if !r.stopped {
		r.validate(cfg)
	}
	if len(r.errs) > 0 {
		r.errs.sort()
		return nil, nil, r.errs
	}
	sortWarnings(r.warnings)
	return cfg, r.warnings, nil
}

// documents decodes the only document of data.
func (r *reader) documents(data []byte, cfg *Config) {
	dec := yaml.NewDecoder(bytes.NewReader(data))
	var doc, second yaml.Node
	switch err := dec.Decode(&doc); {
	case errors.Is(err, io.EOF):
		r.stop(place{}, "", "the file is empty")
		return
	case err != nil:
		r.syntax(err, data)
		return
	}
	root := doc.Content[0]
	if root.ShortTag() == "!!null" {
		r.stop(place{}, "", "the file is empty")
		return
	}
	r.decode(root, "", reflect.ValueOf(cfg).Elem())
	r.rootIsWrong = !r.wellFormed("")
	switch err := dec.Decode(&second); {
	case errors.Is(err, io.EOF):
	case err != nil:
		r.syntax(err, data)
	default:
		at := place{line: second.Line, column: second.Column}
		r.report(at, "", "a second document starts here: the file must have one only")
	}
}

// parserProblems are the messages whose line the YAML library counts from 0; in the others it counts from 1.
var parserProblems = []string{
	"did not find expected node content", "did not find expected key", "did not find expected '-' indicator",
	"did not find expected ',' or", "did not find expected <",
}

// syntax reports that the text is no YAML. The library knows the line of the mistake or that of the list or mapping
// around it, and leaves out the first line.
func (r *reader) syntax(err error, data []byte) {
	msg := strings.TrimPrefix(err.Error(), "yaml: ")
	line := 0
	if n, scanErr := fmt.Sscanf(msg, "line %d:", &line); n == 1 && scanErr == nil {
		_, msg, _ = strings.Cut(msg, ": ")
	} else if anchor, ok := strings.CutPrefix(msg, "unknown anchor '"); ok {
		anchor, _, _ = strings.Cut(anchor, "'")
		before, _, _ := bytes.Cut(data, []byte("*"+anchor))
		line = bytes.Count(before, []byte("\n")) + 1
	}
	if slices.ContainsFunc(parserProblems, func(p string) bool { return strings.HasPrefix(msg, p) }) {
		line++
	}
	r.stop(place{line: max(line, 1)}, "", "not valid YAML here or below: "+msg)
}

// checkText finds what YAML does not allow at all, because the parser does not tell where it is.
func checkText(name string, data []byte) *FieldError {
	text := bytes.TrimPrefix(data, []byte("\uFEFF"))
	line, column := 1, 0
	for len(text) > 0 {
		c, size := utf8.DecodeRune(text)
		text = text[size:]
		column++
		switch {
		case c == utf8.RuneError && size == 1:
			return &FieldError{File: name, Line: line, Column: column, Msg: "not valid UTF-8"}
		case c == '\n':
			line, column = line+1, 0
		case c < ' ' && c != '\t' && c != '\r', c == 0x7f:
			return &FieldError{File: name, Line: line, Column: column, Msg: fmt.Sprintf("control character %U", c)}
		}
	}
	return nil
}
