package conflist

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/afxdp-project/afxdp/internal/cni"
)

const entryText = `{"type": "afxdp-cni"}`

func testEntry() cni.Entry { return cni.Entry{Type: cni.Type} }

func mustParse(tb testing.TB, text string) *list {
	tb.Helper()
	l, err := parseList([]byte(text))
	if err != nil {
		tb.Fatalf("%v:\n%s", err, text)
	}
	return l
}

func TestEntryIsInsertedInTheStyleOfTheList(t *testing.T) {
	for name, tc := range map[string]struct{ before, after string }{
		"indented by spaces": {
			"{\"name\": \"n\",\n  \"plugins\": [\n    {\"type\": \"a\"},\n    {\"type\": \"b\"}\n  ]\n}\n",
			"{\"name\": \"n\",\n  \"plugins\": [\n    {\"type\": \"a\"},\n    {\"type\": \"b\"},\n    " + entryText + "\n  ]\n}\n",
		},
		"indented by tabs, without a line break at the end": {
			"{\n\t\"plugins\": [\n\t{\n\t\t\"type\": \"a\"\n\t}\n\t],\n\t\"name\": \"n\"}",
			"{\n\t\"plugins\": [\n\t{\n\t\t\"type\": \"a\"\n\t},\n\t" + entryText + "\n\t],\n\t\"name\": \"n\"}",
		},
		"line breaks of Windows": {
			"{\"name\":\"n\",\r\n\"plugins\":[\r\n  {\"type\":\"a\"}\r\n]}",
			"{\"name\":\"n\",\r\n\"plugins\":[\r\n  {\"type\":\"a\"},\r\n  " + entryText + "\r\n]}",
		},
		"blank lines": {
			"{\"name\":\"n\",\"plugins\":[\n\n\n  {\"type\":\"a\"}\n\n]}",
			"{\"name\":\"n\",\"plugins\":[\n\n\n  {\"type\":\"a\"},\n  " + entryText + "\n\n]}",
		},
		"on one line": {
			`{"name": "n", "plugins": [{"type": "a"}, {"type": "b"}]}`,
			`{"name": "n", "plugins": [{"type": "a"}, {"type": "b"}, ` + entryText + `]}`,
		},
		"on one line, a single plugin": {
			`{"name": "n", "plugins": [ {"type": "a"} ]}`,
			`{"name": "n", "plugins": [ {"type": "a"}, ` + entryText + ` ]}`,
		},
		"without spaces": {
			`{"name":"n","plugins":[{"type":"a"},{"type":"b"}]}`,
			`{"name":"n","plugins":[{"type":"a"},{"type":"b"},` + entryText + `]}`,
		},
		"commas first": {
			"{\"name\":\"n\"\n,\"plugins\":[{\"type\":\"a\"}\n,{\"type\":\"b\"}\n]}",
			"{\"name\":\"n\"\n,\"plugins\":[{\"type\":\"a\"}\n,{\"type\":\"b\"}," + entryText + "\n]}",
		},
		"an escaped key, and what looks like plugins but is not": {
			`{"x": {"plugins": [{"type": "z"}]}, "s": "\"plugins\": [", "plug\u0069ns": [{"type": "a", "plugins": []}], "name": "n"}`,
			`{"x": {"plugins": [{"type": "z"}]}, "s": "\"plugins\": [", "plug\u0069ns": [{"type": "a", "plugins": []}, ` + entryText + `], "name": "n"}`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			l, err := mustParse(t, tc.before).add(testEntry())
			if err != nil {
				t.Fatal(err)
			}
			if string(l.text) != tc.after {
				t.Errorf("got  %q\nwant %q", l.text, tc.after)
			}
			if !l.ours() {
				t.Error("it is not recognised")
			}
			if back, err := l.remove(l.find()); err != nil || string(back.text) != tc.before {
				t.Errorf("taken out: %q, %v\nwant       %q", back.text, err, tc.before)
			}
		})
	}
}

func TestListsOfMainNetworksAreAsBeforeWhenTheEntryIsTakenOut(t *testing.T) {
	files, err := filepath.Glob("testdata/*.conflist")
	if err != nil || len(files) < 4 {
		t.Fatal(files, err)
	}
	entry := cni.NewEntry(`/run/a "b" <c>.sock`, "/data/kubelet")
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		before := mustParse(t, string(text))
		l, err := before.add(entry)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if got, simple := l.entry(l.find()); got != entry || !simple {
			t.Errorf("%s: the entry reads %+v", name, got)
		}
		if added := len(l.text) - len(text) - len(render(entry)); added > 12 {
			t.Errorf("%s: %d bytes more than the entry were added:\n%s", name, added, l.text)
		}
		if l, err = l.update(l.find(), testEntry()); err != nil || !l.ours() {
			t.Fatalf("%s: update: %v", name, err)
		}
		if l, err = l.remove(l.find()); err != nil || !bytes.Equal(l.text, text) {
			t.Errorf("%s: got %q, %v", name, l.text, err)
		}
	}
}

// Another program may read the list with the entry in it and write it in its own way.
func TestEntryIsTakenOutOfAListThatWasFormattedAnew(t *testing.T) {
	for _, tc := range []struct{ before, after string }{
		{"{\"name\":\"n\",\"plugins\":[{\"type\":\"a\"},{\"type\":\"afxdp-cni\"}]}", "{\"name\":\"n\",\"plugins\":[{\"type\":\"a\"}]}"},
		{
			"{\"name\":\"n\",\"plugins\":[\n {\"type\":\"a\"},\n {\n  \"type\": \"afxdp-cni\"\n },\n {\"type\":\"mesh\"}\n]}",
			"{\"name\":\"n\",\"plugins\":[\n {\"type\":\"a\"},\n {\"type\":\"mesh\"}\n]}",
		},
		{
			"{\"name\":\"n\",\"plugins\":[ {\"timeout\":\"5s\",\"type\":\"afxdp-cni\"} , {\"type\":\"mesh\"} ]}",
			"{\"name\":\"n\",\"plugins\":[ {\"type\":\"mesh\"} ]}",
		},
	} {
		l := mustParse(t, tc.before)
		if l.ours() && strings.Contains(tc.before, "\n") {
			t.Errorf("taken for the agent's own: %q", tc.before)
		}
		l, err := l.remove(l.find())
		if err != nil || string(l.text) != tc.after {
			t.Errorf("got  %q, %v\nwant %q", l.text, err, tc.after)
		}
	}
	if _, err := mustParse(t, `{"name":"n","plugins":[{"type":"afxdp-cni"}]}`).remove(0); err == nil {
		t.Error("a list without plugins would be left")
	}
}

func TestOnlyTheAgentsOwnEntryIsRecognised(t *testing.T) {
	for text, want := range map[string]bool{
		`{"name":"n","plugins":[{"type":"a"}, {"type": "afxdp-cni"}]}`:                            true,
		`{"name":"n","plugins":[{"type":"a"}, {"type": "afxdp-cni", "agentSocket": "/run/old"}]}`: true,
		`{"name":"n","plugins":[{"type":"a"}, {"type":"afxdp-cni"}]}`:                             false,
		`{"name":"n","plugins":[{"type":"a"}, {"type": "afxdp-cni", "timeout": "5s"}]}`:           false,
		`{"name":"n","plugins":[{"type":"a"}, {"type": "afxdp-cni"}, {"type":"b"}]}`:              false,
		`{"name":"n","plugins":[{"type": "afxdp-cni"}, {"type":"b"}]}`:                            false,
		`{"name":"n","plugins":[{"type": "afxdp-cni"}]}`:                                          false,
		`{"name":"n","plugins":[{"type":"a"}]}`:                                                   false,
	} {
		if got := mustParse(t, text).ours(); got != want {
			t.Errorf("%s: %v", text, got)
		}
	}
}

func TestWhatIsNoListIsRefused(t *testing.T) {
	for text, want := range map[string]string{
		"":                                       "not JSON",
		" \n":                                    "not JSON",
		`{"name": "n", "plugins": [{"type": "a"`: "not JSON",
		`{"name":"n","plugins":[{"type":"a"}]} x`: "not JSON",
		`[]`:                                      "not a JSON object",
		`{"plugins":[{"type":"a"}]}`:              "no name",
		`{"name":1,"plugins":[{"type":"a"}]}`:     "no name",
		`{"name":"n"}`:                            "no plugins",
		`{"name":"n","plugins":{}}`:               "not an array",
		`{"name":"n","plugins":null}`:             "not an array",
		`{"name":"n","plugins":[]}`:               "empty",
		`{"name":"n","plugins":[{"type":"a"},1]}`: "plugins[1]",
		`{"name":"n","plugins":[{"type":1}]}`:     "plugins[0]",
		`{"name":"n","plugins":[null]}`:           "plugins[0]",
		`{"name":"n","plugins":[{"type":"a"}],"plugins":[{"type":"b"}]}`: "two keys",
		`{"name":"n","cniVersion":1,"plugins":[{"type":"a"}]}`:           "cniVersion",
		`{"name":"n","cniVersions":"1","plugins":[{"type":"a"}]}`:        "cniVersions",
	} {
		if _, err := parseList([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q in it", text, err, want)
		}
	}
}

// Whatever list it is: adding gives the same value with one element more, and taking out the same bytes.
func FuzzAddAndRemove(f *testing.F) {
	files, err := filepath.Glob("testdata/*.conflist")
	if err != nil {
		f.Fatal(err)
	}
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	f.Add([]byte(`{"plugins":[{"type":"a"},{"type":"afxdp-cni"},{"type":"b"}],"name":"n","x":1e400}`))
	f.Add([]byte("\r\n{ \"plug\\u0069ns\" :\r\n[ {\"Type\" : \"a\"}\t, {\"type\":\"\xff\"} ] , \"name\":\"n\"}"))
	f.Fuzz(func(t *testing.T, text []byte) {
		l, err := parseList(text)
		if err != nil {
			return
		}
		added, err := l.add(testEntry())
		if err != nil {
			t.Fatal(err)
		}
		var before, after map[string]any
		if json.Unmarshal(text, &before) == nil && json.Unmarshal(added.text, &after) == nil {
			before["plugins"] = append(before["plugins"].([]any), map[string]any{"type": "afxdp-cni"})
			if !reflect.DeepEqual(before, after) {
				t.Errorf("another value: %s", added.text)
			}
		}
		back, err := added.remove(len(added.plugins) - 1)
		if err != nil || !bytes.Equal(back.text, text) {
			t.Errorf("got %q, %v", back.text, err)
		}
		if l.find() < 0 && !added.ours() {
			t.Errorf("not recognised: %q", added.text)
		}
		for l.find() >= 0 {
			if l, err = l.remove(l.find()); err != nil {
				return // it is the only plugin
			}
		}
		if len(l.text) > len(text) {
			t.Errorf("taking out made it longer: %q", l.text)
		}
	})
}
