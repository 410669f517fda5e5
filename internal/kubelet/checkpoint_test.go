package kubelet

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

func TestCheckpointIsRead(t *testing.T) {
	want := []Entry{{PodUID: "u1", Container: "app", Resource: "afxdp.io/fast", DeviceIDs: []string{"eth1-q0", "eth1-q1"}}}
	for name, tc := range map[string]struct {
		text string
		want []Entry
	}{
		"by NUMA node": {`{"Data":{"PodDeviceEntries":[{"PodUID":"u1","ContainerName":"app","ResourceName":"afxdp.io/fast",
			"DeviceIDs":{"1":["eth1-q1"],"-1":["eth1-q0"]},"AllocResp":"CgA="}],"RegisteredDevices":{"afxdp.io/fast":["x"]}},
			"Checksum":4294967295,"BootID":"b"}`, want},
		"a device of two nodes once": {`{"Data":{"PodDeviceEntries":[{"PodUID":"u1","ContainerName":"app",
			"ResourceName":"afxdp.io/fast","DeviceIDs":{"0":["eth1-q1","eth1-q0"],"1":["eth1-q1"]}}]}}`, want},
		"plain list, kubelet up to 1.19": {`{"Data":{"PodDeviceEntries":[{"PodUID":"u1","ContainerName":"app",
			"ResourceName":"afxdp.io/fast","DeviceIDs":["eth1-q1","eth1-q0"],"AllocResp":"CgA="}],"RegisteredDevices":{}},
			"Checksum":1}`, want},
		"no entries": {`{"Data":{"PodDeviceEntries":null,"RegisteredDevices":{}},"Checksum":1}`, nil},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "checkpoint")
			if err := os.WriteFile(path, []byte(tc.text), 0o600); err != nil {
				t.Fatal(err)
			}
			cp, err := ReadCheckpoint(path)
			if err != nil || !reflect.DeepEqual(cp.Entries, tc.want) {
				t.Errorf("got %+v, %v; want %+v", cp.Entries, err, tc.want)
			}
		})
	}
}

func TestBadCheckpointIsAnErrorAndNotAMissingOne(t *testing.T) {
	whole := `{"Data":{"PodDeviceEntries":[{"PodUID":"u1","ContainerName":"app","ResourceName":"afxdp.io/fast",` +
		`"DeviceIDs":{"-1":["eth1-q0"]}}]}}`
	bad := map[string]string{
		"no object":         `[]`,
		"another document":  `{}`,
		"two documents":     whole + whole,
		"no pod UID":        strings.Replace(whole, `"u1"`, `""`, 1),
		"no container":      strings.Replace(whole, `"app"`, `""`, 1),
		"no resource":       strings.Replace(whole, `"afxdp.io/fast"`, `""`, 1),
		"ids are a number":  strings.Replace(whole, `{"-1":["eth1-q0"]}`, `7`, 1),
		"node is a word":    strings.Replace(whole, `"-1"`, `"x"`, 1),
		"an id is a number": strings.Replace(whole, `["eth1-q0"]`, `[7]`, 1),
	}
	for n := range len(whole) {
		bad["cut after "+whole[:n]] = whole[:n]
	}
	path := filepath.Join(t.TempDir(), "checkpoint")
	for name, text := range bad {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := ReadCheckpoint(path)
		if err == nil || errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: got error %v", name, err)
		}
	}
}

func TestCheckpointThatCannotBeRead(t *testing.T) {
	dir := t.TempDir()
	if _, err := ReadCheckpoint(filepath.Join(dir, "none")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("missing file: %v, want ErrNotExist", err)
	}
	if _, err := ReadCheckpoint(dir); err == nil || errors.Is(err, fs.ErrNotExist) {
		t.Errorf("directory: %v", err)
	}
	big := filepath.Join(dir, "big")
	if err := os.WriteFile(big, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(big, maxCheckpoint+1); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadCheckpoint(big); err == nil || !strings.Contains(err.Error(), "larger than") {
		t.Errorf("large file: %v", err)
	}
}

func FuzzCheckpoint(f *testing.F) {
	for _, ids := range []string{`{"0":["d"]}`, `["d"]`} {
		f.Add([]byte(`{"Data":{"PodDeviceEntries":[` +
			`{"PodUID":"u","ContainerName":"c","ResourceName":"r","DeviceIDs":` + ids + `}]}}`))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		cp, err := parseCheckpoint(data)
		for _, e := range cp.Entries {
			if err != nil || e.PodUID == "" || e.Container == "" || e.Resource == "" {
				t.Errorf("entry %+v with error %v", e, err)
			}
		}
	})
}

func TestDomainIsTheWholePartBeforeTheSlash(t *testing.T) {
	for resource, want := range map[string]bool{
		"afxdp.io/fast": true, "afxdp.io/": true, "afxdp.io": false, "afxdp.iox/fast": false,
		"xafxdp.io/fast": false, "cpu": false, "": false,
	} {
		if got := InDomain(resource, "afxdp.io"); got != want {
			t.Errorf("InDomain(%q) = %v", resource, got)
		}
	}
}
