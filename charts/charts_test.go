// Package charts holds the Helm chart to the programs that it runs. What needs Helm is tested in tools/cluster.
package charts

import (
	"encoding"
	"encoding/json"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/afxdp-project/afxdp/internal/config"
)

// schema is the part of JSON Schema that the chart uses.
type schema struct {
	Type                 any               `json:"type"`
	Properties           map[string]schema `json:"properties"`
	AdditionalProperties any               `json:"additionalProperties"`
	Items                *schema           `json:"items"`
	Definitions          map[string]schema `json:"definitions"`
	Required             []string          `json:"required"`
	Enum                 []any             `json:"enum"`
	Ref                  string            `json:"$ref"`
	Minimum, Maximum     *int
	MaxLength, MaxItems  int
	AnyOf                []schema `json:"anyOf"`
}

func readSchema(t *testing.T) schema {
	t.Helper()
	data, err := os.ReadFile("afxdp/values.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	var s schema
	if err := json.Unmarshal(data, &s); err != nil {
		t.Fatal(err)
	}
	return s
}

// fields returns the names and types in a configuration file of a struct's fields.
func fields(t reflect.Type) map[string]reflect.Type {
	all := map[string]reflect.Type{}
	for f := range t.Fields() {
		all[f.Tag.Get("yaml")] = f.Type
	}
	return all
}

func TestSchemaHasTheFieldsOfAPool(t *testing.T) {
	root := readSchema(t)
	var walk func(path string, s schema, of reflect.Type)
	walk = func(path string, s schema, of reflect.Type) {
		want := fields(of)
		if got := slices.Sorted(maps.Keys(s.Properties)); !slices.Equal(got, slices.Sorted(maps.Keys(want))) {
			t.Errorf("%s: the schema has %v, the configuration %v", path, got, slices.Sorted(maps.Keys(want)))
		}
		if s.AdditionalProperties != false {
			t.Errorf("%s: additionalProperties is %v", path, s.AdditionalProperties)
		}
		for name, ft := range want {
			p := s.Properties[name]
			kind := ""
			switch {
			case ft == reflect.TypeFor[time.Duration]():
				if p.Ref != "#/definitions/duration" {
					t.Errorf("%s.%s is no duration", path, name)
				}
			case ft == reflect.TypeFor[config.Bytes]():
				if p.Ref != "#/definitions/size" {
					t.Errorf("%s.%s is no size", path, name)
				}
			case reflect.PointerTo(ft).Implements(reflect.TypeFor[encoding.TextUnmarshaler]()):
			case ft.Kind() == reflect.Struct:
				walk(path+"."+name, p, ft)
			case ft.Kind() == reflect.Bool:
				kind = "boolean"
			case ft.Kind() == reflect.String:
				kind = "string"
			case ft.Kind() == reflect.Slice:
				kind = "array"
			case ft.Kind() == reflect.Int && p.Enum == nil:
				kind = "integer"
			}
			if kind != "" && p.Type != kind {
				t.Errorf("%s.%s is %v, want %s", path, name, p.Type, kind)
			}
		}
	}
	walk("pool", root.Definitions["pool"], reflect.TypeFor[config.Pool]())
}

func TestSchemaHasTheBoundsOfAPool(t *testing.T) {
	root := readSchema(t)
	pool := root.Definitions["pool"]
	if root.Properties["pools"].MaxItems != config.MaxPools {
		t.Errorf("pools: at most %d", root.Properties["pools"].MaxItems)
	}
	busyPoll, limits := pool.Properties["busyPoll"].Properties, pool.Properties["limits"].Properties
	for name, tt := range map[string]struct {
		s         schema
		low, high int
	}{
		"nics.numaNodes":         {*pool.Properties["nics"].Properties["numaNodes"].Items, 0, config.MaxNUMANode},
		"busyPoll.budget":        {busyPoll["budget"], 0, config.MaxBudget},
		"busyPoll.deferHardIRQs": {busyPoll["deferHardIRQs"], 0, config.MaxDeferHardIRQs},
		"limits.maxFrames":       {limits["maxFrames"], 1, config.MaxFrames},
		"limits.maxConnections":  {limits["maxConnections"], 1, config.MaxConnections},
		"size":                   {root.Definitions["size"].AnyOf[1], config.MinUMEM, config.MaxUMEM},
	} {
		if tt.s.Minimum == nil || tt.s.Maximum == nil || *tt.s.Minimum != tt.low || *tt.s.Maximum != tt.high {
			t.Errorf("%s: %+v, want %d to %d", name, tt.s, tt.low, tt.high)
		}
	}
	rings := limits["maxRingSize"].Enum
	if len(rings) != 17 || rings[0] != 1.0 || rings[16] != float64(config.MaxRingSize) {
		t.Errorf("limits.maxRingSize: %v", rings)
	}
	modes := []any{string(config.ZeroCopyAuto), string(config.ZeroCopyRequire), string(config.ZeroCopyNever)}
	if got := pool.Properties["zeroCopy"].Enum; !reflect.DeepEqual(got, modes) {
		t.Errorf("zeroCopy: %v", got)
	}
}

// A mistyped value would be left out in silence. Free are what Kubernetes checks itself and maps of strings.
func TestSchemaKnowsEveryKey(t *testing.T) {
	free := []string{"affinity", "global", "tolerations.items", "resources.requests", "resources.limits"}
	var walk func(path string, s schema)
	walk = func(path string, s schema) {
		object := s.Type == "object" || s.Properties != nil
		strings, _ := s.AdditionalProperties.(map[string]any)
		if object && s.AdditionalProperties != false && strings["type"] != "string" && !slices.Contains(free, path) {
			t.Errorf("%s takes any key", path)
		}
		for name, p := range s.Properties {
			walk(join(path, name), p)
		}
		if s.Items != nil {
			walk(join(path, "items"), *s.Items)
		}
		for name, d := range s.Definitions {
			walk(name, d)
		}
	}
	root := readSchema(t)
	if root.AdditionalProperties != false {
		t.Error("the values take any key")
	}
	root.Type = nil
	for name, p := range root.Properties {
		walk(name, p)
	}
	for name, d := range root.Definitions {
		walk(name, d)
	}
	values := map[string]any{}
	data, err := os.ReadFile("afxdp/values.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal(data, &values); err != nil {
		t.Fatal(err)
	}
	var compare func(path string, s schema, values map[string]any)
	compare = func(path string, s schema, values map[string]any) {
		for name, p := range s.Properties {
			v, ok := values[name]
			if !ok && name != "global" {
				t.Errorf("values.yaml does not have %s", join(path, name))
			}
			if inner, ok := v.(map[string]any); ok && p.Properties != nil && name != "seLinuxOptions" {
				compare(join(path, name), p, inner)
			}
		}
	}
	compare("", root, values)
}

func join(path, name string) string { return strings.TrimPrefix(path+"."+name, ".") }

// rendered returns the documents of a golden file by kind and name, such as "ConfigMap afxdp".
func rendered(t *testing.T, path string) map[string][]byte {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	all := map[string][]byte{}
	for document := range strings.SplitSeq(string(data), "\n---\n") {
		var head struct {
			Kind     string
			Metadata struct{ Name string }
		}
		if err := yaml.Unmarshal([]byte(document), &head); err != nil {
			t.Fatal(err)
		}
		all[head.Kind+" "+head.Metadata.Name] = []byte(document)
	}
	return all
}

func unmarshal[T any](t *testing.T, document []byte) *T {
	t.Helper()
	o := new(T)
	if err := yaml.UnmarshalStrict(document, o); err != nil || len(document) == 0 {
		t.Fatalf("no %T: %v", o, err)
	}
	return o
}

// The programs take the flags that the chart gives them, and the configuration that it makes.
func TestProgramsTakeWhatTheChartGives(t *testing.T) {
	dir := t.TempDir()
	if out, err := exec.Command("go", "build", "-o", dir, "../cmd/afxdp-deviceplugin", "../cmd/afxdp-bench").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	run := func(t *testing.T, program string, args ...string) {
		t.Helper()
		if out, err := exec.Command(filepath.Join(dir, program), args...).CombinedOutput(); err != nil {
			t.Errorf("%s %v: %v\n%s", program, args, err, out)
		}
	}
	names, err := filepath.Glob("testdata/*.golden.yaml")
	if err != nil || len(names) == 0 {
		t.Fatalf("nothing is rendered: %v", err)
	}
	for _, name := range names {
		t.Run(filepath.Base(name), func(t *testing.T) {
			documents := rendered(t, name)
			file := filepath.Join(dir, "config.yaml")
			text := unmarshal[corev1.ConfigMap](t, documents["ConfigMap afxdp"]).Data["config.yaml"]
			if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
			pod := unmarshal[appsv1.DaemonSet](t, documents["DaemonSet afxdp"]).Spec.Template.Spec
			args := slices.Clone(pod.Containers[0].Args)
			args[slices.Index(args, "--config=/etc/afxdp/config.yaml")] = "--config=" + file
			run(t, "afxdp-deviceplugin", append(args, "--check")...)
			run(t, "afxdp-deviceplugin", append(pod.InitContainers[0].Args, "--help")...)
			if job := documents["Job afxdp-uninstall"]; job != nil {
				run(t, "afxdp-deviceplugin", append(unmarshal[batchv1.Job](t, job).Spec.Template.Spec.Containers[0].Args, "--help")...)
			}
			if test := documents["Pod afxdp-test"]; test != nil {
				command := unmarshal[corev1.Pod](t, test).Spec.Containers[0].Command
				run(t, command[0], append(command[1:], "--help")...)
			}
		})
	}
}
