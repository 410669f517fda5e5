package install

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Users says where to look for those who still need the CNI plugin.
//
// A pod whose network was set up through the plugin may have it called once more, for DEL, and must wait for ever for its
// end if it is not there. Which configuration a runtime uses for DEL differs. containerd uses the network's present one,
// so that a plugin which was taken out of it is not missed. CRI-O, and Multus with every runtime, use the one of the ADD,
// which they keep.
type Users struct {
	// CacheDir is where runtimes keep what they set up: results/ of libcni and multus/ of Multus in /var/lib/cni.
	CacheDir string
	// ConfDir is the runtime's directory of network configurations; empty: not known.
	ConfDir string
	// Runtime is the container runtime as the node tells it, such as "containerd://2.3.0"; empty: not known.
	Runtime string
}

// Find returns what needs the plugin, in words. The error says what could not be found out.
func (u Users) Find() (users []string, err error) {
	// Not there is not "none": it may just not be mounted, or be another directory than the runtime's.
	_, results := os.Stat(filepath.Join(u.CacheDir, "results"))
	if _, multus := os.Stat(filepath.Join(u.CacheDir, "multus")); results != nil && multus != nil {
		return nil, fmt.Errorf("look for pods that use the CNI plugin: %w", results)
	}
	names, users, err := u.configurations()
	if err != nil {
		return nil, err
	}
	pods, err := u.attachments(names)
	if err != nil {
		return nil, err
	}
	multus, err := u.multus()
	if err != nil {
		return nil, err
	}
	return slices.Concat(users, pods, multus), nil
}

// network is what a configuration has, of one plugin or of a list.
type network struct {
	Name    string `json:"name"`
	Type    string `json:"type"`
	Plugins []struct {
		Type string `json:"type"`
	} `json:"plugins"`
}

// uses reports whether a network's configuration names the plugin. One that cannot be read does if the name is in it.
func uses(config []byte) (name string, uses bool) {
	var n network
	if err := json.Unmarshal(config, &n); err != nil {
		return "", strings.Contains(string(config), PluginName)
	}
	uses = n.Type == PluginName
	for _, p := range n.Plugins {
		uses = uses || p.Type == PluginName
	}
	return n.Name, uses
}

// configurations returns the names of the networks in ConfDir, and of those that use the plugin a description.
func (u Users) configurations() (names map[string]bool, users []string, err error) {
	names = make(map[string]bool)
	if u.ConfDir == "" {
		return names, nil, nil
	}
	entries, err := os.ReadDir(u.ConfDir)
	if err != nil {
		return nil, nil, fmt.Errorf("look for networks that use the CNI plugin: %w", err)
	}
	for _, e := range entries {
		if e.IsDir() || !slices.Contains([]string{".conf", ".conflist", ".json"}, filepath.Ext(e.Name())) {
			continue
		}
		path := filepath.Join(u.ConfDir, e.Name())
		config, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, nil, fmt.Errorf("look for networks that use the CNI plugin: %w", err)
		}
		name, uses := uses(config)
		names[name] = true
		if uses {
			users = append(users, "the network configuration "+path)
		}
	}
	delete(names, "")
	return names, users, nil
}

// attachment is what libcni keeps of an ADD that succeeded until its DEL has.
type attachment struct {
	ContainerID string      `json:"containerId"`
	Config      []byte      `json:"config"`
	NetworkName string      `json:"networkName"`
	Args        [][2]string `json:"cniArgs"`
}

// attachments returns the pods whose DEL will call the plugin, given the networks that have a configuration.
func (u Users) attachments(current map[string]bool) (users []string, err error) {
	dir := filepath.Join(u.CacheDir, "results")
	err = eachFile(dir, func(_ string, content []byte) {
		var a attachment
		if json.Unmarshal(content, &a) != nil {
			return // a result without a configuration, as libcni kept it before version 0.8
		}
		if _, uses := uses(a.Config); !uses {
			return
		}
		if strings.HasPrefix(u.Runtime, "containerd://") && current[a.NetworkName] {
			return
		}
		users = append(users, fmt.Sprintf("%s in network %s", a.pod(), a.NetworkName))
	})
	return users, err
}

// pod names the pod of an attachment.
func (a attachment) pod() string {
	args := make(map[string]string)
	for _, pair := range a.Args {
		args[pair[0]] = pair[1]
	}
	if args["K8S_POD_NAME"] == "" {
		return "container " + a.ContainerID
	}
	return "pod " + args["K8S_POD_NAMESPACE"] + "/" + args["K8S_POD_NAME"]
}

// multus returns the sandboxes for which Multus keeps a configuration that names the plugin.
func (u Users) multus() (users []string, err error) {
	err = eachFile(filepath.Join(u.CacheDir, "multus"), func(name string, content []byte) {
		if strings.Contains(string(content), `"`+PluginName+`"`) {
			users = append(users, "sandbox "+name+" of Multus")
		}
	})
	return users, err
}

// eachFile calls f with the files of a directory, which need not exist.
func eachFile(dir string, f func(name string, content []byte)) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("look for pods that use the CNI plugin: %w", err)
	}
	for _, e := range entries {
		if !e.Type().IsRegular() {
			continue
		}
		content, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if errors.Is(err, fs.ErrNotExist) {
			continue // the pod has ended since
		}
		if err != nil {
			return fmt.Errorf("look for pods that use the CNI plugin: %w", err)
		}
		f(e.Name(), content)
	}
	return nil
}
