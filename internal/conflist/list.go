package conflist

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"

	"github.com/afxdp-project/afxdp/internal/cni"
)

// list is a configuration list and where in its text the plugins are.
type list struct {
	text     []byte
	versions []string // cniVersion and cniVersions: the runtime takes the highest that it knows
	plugins  []plugin
}

// plugin is an element of the plugins array: text[start:end].
type plugin struct {
	start, end int
	kind       string
}

// errNoPlugins is a list whose plugins are elsewhere, which libcni reads from a directory of the network's name.
var errNoPlugins = errors.New("it has no plugins array")

// parseList reads a configuration list as libcni does, and refuses what libcni refuses.
func parseList(text []byte) (*list, error) {
	if !json.Valid(text) {
		return nil, invalid(text)
	}
	l := &list{text: text}
	d := json.NewDecoder(bytes.NewReader(text))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return nil, errors.New("it is not a JSON object")
	}
	fields := make(map[string]json.RawMessage)
	for d.More() {
		key, err := d.Token()
		if err != nil {
			return nil, err
		}
		var value json.RawMessage
		if err := d.Decode(&value); err != nil {
			return nil, err
		}
		if key == "plugins" {
			if fields["plugins"] != nil {
				return nil, errors.New("it has two keys plugins")
			}
			if err := l.readPlugins(value, int(d.InputOffset())-len(value)); err != nil {
				return nil, err
			}
		}
		fields[key.(string)] = value
	}
	var name string
	if err := json.Unmarshal(fields["name"], &name); fields["name"] == nil || err != nil {
		return nil, errors.New("it has no name, or one that is not a string")
	}
	var version string
	if raw := fields["cniVersion"]; raw != nil {
		if err := json.Unmarshal(raw, &version); err != nil {
			return nil, errors.New("cniVersion is not a string")
		}
	}
	if raw := fields["cniVersions"]; raw != nil {
		if err := json.Unmarshal(raw, &l.versions); err != nil {
			return nil, errors.New("cniVersions is not a list of strings")
		}
	}
	if version != "" || len(l.versions) == 0 {
		l.versions = append(l.versions, version)
	}
	if fields["plugins"] == nil {
		return nil, errNoPlugins
	}
	return l, nil
}

// invalid says what is wrong with text that is not JSON.
func invalid(text []byte) error {
	var v any
	err := json.Unmarshal(text, &v)
	if len(bytes.TrimSpace(text)) == 0 {
		err = io.ErrUnexpectedEOF
	}
	return fmt.Errorf("it is not JSON: %w", err)
}

// readPlugins reads the plugins array, which starts at an offset of the list's text.
func (l *list) readPlugins(array json.RawMessage, offset int) error {
	d := json.NewDecoder(bytes.NewReader(array))
	if t, err := d.Token(); err != nil || t != json.Delim('[') {
		return errors.New("plugins is not an array")
	}
	for d.More() {
		var raw json.RawMessage
		if err := d.Decode(&raw); err != nil {
			return err
		}
		var has struct{ Type string }
		if raw[0] != '{' || json.Unmarshal(raw, &has) != nil || has.Type == "" {
			return fmt.Errorf("plugins[%d] is not an object with a type", len(l.plugins))
		}
		end := offset + int(d.InputOffset())
		l.plugins = append(l.plugins, plugin{end - len(raw), end, has.Type})
	}
	if len(l.plugins) == 0 {
		return errors.New("plugins is empty")
	}
	return nil
}

// find returns the index of the first element of ours, or -1.
func (l *list) find() int {
	return slices.IndexFunc(l.plugins, func(p plugin) bool { return p.kind == cni.Type })
}

// entry returns the plugin's entry at an index, and whether it has no more in it than the agent writes: else an operator
// wrote it.
func (l *list) entry(i int) (e cni.Entry, simple bool) {
	d := json.NewDecoder(bytes.NewReader(l.text[l.plugins[i].start:l.plugins[i].end]))
	d.DisallowUnknownFields()
	err := d.Decode(&e)
	return e, i > 0 && err == nil && e.Type == cni.Type
}

// ours reports whether the list ends with an entry just as add writes it, so that nobody else has touched it.
func (l *list) ours() bool {
	i := l.find()
	if i < 0 || i != len(l.plugins)-1 {
		return false
	}
	e, simple := l.entry(i)
	if !simple {
		return false
	}
	without, err := l.remove(i)
	if err != nil {
		return false
	}
	again, err := without.add(e)
	return err == nil && bytes.Equal(again.text, l.text)
}

// render returns an entry's text, with the spaces that configurations are commonly written with.
func render(e cni.Entry) []byte {
	text := fmt.Appendf(nil, `{"type": %q`, e.Type)
	for _, field := range []struct{ key, value string }{{"agentSocket", e.AgentSocket}, {"kubeletRoot", e.KubeletRoot}} {
		if field.value != "" {
			value, _ := json.Marshal(field.value) // a string always can
			text = fmt.Appendf(text, `, %q: %s`, field.key, value)
		}
	}
	return append(text, '}')
}

// add returns the list with an entry at the end of its plugins.
func (l *list) add(e cni.Entry) (*list, error) {
	text, at := render(e), l.plugins[len(l.plugins)-1].end
	return l.edit(at, at, slices.Concat([]byte(","), l.separator(), text), func(plugins []any) ([]any, error) {
		v, err := decode(text)
		return append(plugins, v), err
	})
}

// update returns the list with an entry in the place of an element.
func (l *list) update(i int, e cni.Entry) (*list, error) {
	text := render(e)
	return l.edit(l.plugins[i].start, l.plugins[i].end, text, func(plugins []any) (_ []any, err error) {
		plugins[i], err = decode(text)
		return plugins, err
	})
}

// separator returns the white space that the last element has before it: a line break and indentation, or what is
// between two elements of one line.
func (l *list) separator() []byte {
	last := l.plugins[len(l.plugins)-1]
	from := last.start - 1
	for bytes.IndexByte([]byte(" \t\r\n"), l.text[from]) >= 0 {
		from--
	}
	space := l.text[from+1 : last.start]
	if i := bytes.LastIndexByte(space, '\n'); i >= 0 {
		if i > 0 && space[i-1] == '\r' {
			i--
		}
		return space[i:]
	}
	if len(l.plugins) == 1 {
		return []byte(" ")
	}
	return space
}

// remove returns the list without an element, and without the comma and the white space that go with it.
func (l *list) remove(i int) (*list, error) {
	if len(l.plugins) == 1 {
		return nil, fmt.Errorf("%s is its only plugin", cni.Type)
	}
	from, to := l.plugins[i].start, l.plugins[i].end
	if i > 0 {
		from = l.plugins[i-1].end
	} else {
		to = l.plugins[1].start
	}
	return l.edit(from, to, nil, func(plugins []any) ([]any, error) { return slices.Delete(plugins, i, i+1), nil })
}

// edit replaces text[from:to] and verifies that the value of the result is that of the list with want applied to its
// plugins: whatever this package takes a list for, it does not write another one.
func (l *list) edit(from, to int, insert []byte, want func([]any) ([]any, error)) (*list, error) {
	text := slices.Concat(l.text[:from], insert, l.text[to:])
	before, err := decode(l.text)
	if err != nil {
		return nil, err
	}
	after, err := decode(text)
	if err != nil {
		return nil, fmt.Errorf("the edited text is not JSON any more: %w", err)
	}
	fields := before.(map[string]any)
	if fields["plugins"], err = want(fields["plugins"].([]any)); err != nil {
		return nil, err
	}
	if !reflect.DeepEqual(before, after) {
		return nil, errors.New("the edited text has another value than intended")
	}
	return parseList(text)
}

// decode reads JSON with numbers as they are written.
func decode(text []byte) (v any, err error) {
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	err = d.Decode(&v)
	return v, err
}
