package main

import (
	"bytes"
	"fmt"
	"path"
	"strings"

	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
)

// release is what helm install is told.
type release struct {
	Name, Namespace string
	Values          []byte // YAML, on top of the chart's own
}

// file is what one template made.
type file struct {
	Template string // its name, such as daemonset.yaml
	Objects  []string
}

// render has helm's engine render the chart in dir, values checked against its schema. The files are in the order of
// their names, their objects in that of the template. Notes is the text that helm shows.
func render(dir string, r release) (files []file, notes string, err error) {
	chart, err := loader.LoadDir(dir)
	if err != nil {
		return nil, "", err
	}
	values, err := chartutil.ReadValues(r.Values)
	if err != nil {
		return nil, "", err
	}
	options := chartutil.ReleaseOptions{Name: r.Name, Namespace: r.Namespace, Revision: 1, IsInstall: true}
	all, err := chartutil.ToRenderValues(chart, values, options, chartutil.DefaultCapabilities)
	if err != nil {
		return nil, "", err
	}
	rendered, err := engine.Render(chart, all)
	if err != nil {
		return nil, "", err
	}
	for _, t := range chart.Templates {
		name := strings.TrimPrefix(t.Name, "templates/")
		text := rendered[path.Join(chart.Name(), t.Name)]
		switch {
		case name == "NOTES.txt":
			notes = text
			continue
		case strings.HasPrefix(path.Base(name), "_"):
			continue
		}
		f := file{Template: name}
		for object := range strings.SplitSeq("\n"+text, "\n---\n") {
			if _, _, isObject := strings.Cut(object, "\nkind:"); isObject {
				f.Objects = append(f.Objects, strings.TrimSpace(object)+"\n")
			} else if left := strings.TrimSpace(object); left != "" {
				return nil, "", fmt.Errorf("%s made a document that is no object: %q", name, left)
			}
		}
		if len(f.Objects) > 0 {
			files = append(files, f)
		}
	}
	return files, notes, nil
}

// join writes objects as one file, each of them after the template that made it.
func join(files []file) []byte {
	var out bytes.Buffer
	for _, f := range files {
		for _, object := range f.Objects {
			_, _ = fmt.Fprintf(&out, "---\n# Source: %s\n%s", f.Template, object)
		}
	}
	return out.Bytes()
}
