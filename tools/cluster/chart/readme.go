package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"go.yaml.in/yaml/v3"
)

const (
	tableBegin = "<!-- values: written by `make manifests` -->\n"
	tableEnd   = "<!-- values end -->\n"
)

// readme returns the chart's README with the table of values as values.yaml has them.
func readme(root string) (string, error) {
	old, err := os.ReadFile(filepath.Join(root, chartDir, "README.md"))
	if err != nil {
		return "", err
	}
	values, err := os.ReadFile(filepath.Join(root, chartDir, "values.yaml"))
	if err != nil {
		return "", err
	}
	table, err := valuesTable(values)
	if err != nil {
		return "", err
	}
	before, rest, ok := strings.Cut(string(old), tableBegin)
	_, after, ok2 := strings.Cut(rest, tableEnd)
	if !ok || !ok2 {
		return "", fmt.Errorf("README.md has no place for the table between %q and %q", tableBegin, tableEnd)
	}
	return before + tableBegin + table + tableEnd + after, nil
}

// valuesTable describes each value of values.yaml that has a comment beginning with "# --".
func valuesTable(values []byte) (string, error) {
	var document yaml.Node
	if err := yaml.Unmarshal(values, &document); err != nil {
		return "", err
	}
	out := &strings.Builder{}
	out.WriteString("| value | default | |\n|---|---|---|\n")
	err := writeRows(out, "", document.Content[0])
	return out.String(), err
}

func writeRows(out *strings.Builder, parent string, mapping *yaml.Node) error {
	for i := 0; i < len(mapping.Content); i += 2 {
		key, value := mapping.Content[i], mapping.Content[i+1]
		name := strings.TrimPrefix(parent+"."+key.Value, ".")
		_, comment, documented := strings.Cut(key.HeadComment, "# -- ")
		if !documented {
			if value.Kind != yaml.MappingNode || len(value.Content) == 0 {
				return fmt.Errorf("values.yaml: %s has no comment that begins with \"# -- \"", name)
			}
			if err := writeRows(out, name, value); err != nil {
				return err
			}
			continue
		}
		comment, _, _ = strings.Cut(comment, "# For example:")
		text := strings.Join(strings.Fields(strings.ReplaceAll(comment, "\n#", "\n")), " ")
		shown, err := flow(value)
		if err != nil {
			return err
		}
		_, _ = fmt.Fprintf(out, "| `%s` | `%s` | %s |\n", name, shown, strings.ReplaceAll(strings.TrimSuffix(text, "."), "|", "\\|"))
	}
	return nil
}

// flow writes a value in one line.
func flow(n *yaml.Node) (string, error) {
	var clone yaml.Node
	data, err := yaml.Marshal(n)
	if err != nil {
		return "", err
	}
	if err := yaml.Unmarshal(data, &clone); err != nil {
		return "", err
	}
	value := clone.Content[0]
	var inline func(*yaml.Node)
	inline = func(n *yaml.Node) {
		n.HeadComment, n.LineComment, n.FootComment = "", "", ""
		if n.Kind != yaml.ScalarNode {
			n.Style = yaml.FlowStyle
		}
		for _, c := range n.Content {
			inline(c)
		}
	}
	inline(value)
	data, err = yaml.Marshal(value)
	return string(bytes.TrimSpace(data)), err
}
