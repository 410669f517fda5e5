package conflist

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/afxdp-project/afxdp/internal/cni"
)

// Config says which entry is kept and where.
type Config struct {
	Dir         string // the runtime's CNI configuration directory, such as /etc/cni/net.d; it need not exist yet
	BinDir      string // where the runtime looks for plugins, such as /opt/cni/bin
	AgentSocket string // the agent's socket, on the node
	KubeletRoot string // kubelet's root directory, on the node

	// Changed is called when the status has changed, not concurrently. Nil: not called.
	Changed func(Status)
}

// Status is how the node's first network configuration stands.
type Status struct {
	File    string `json:"file,omitempty"`   // the first configuration; empty: there is none
	Chained bool   `json:"chained"`          // it calls the plugin
	Reason  string `json:"reason,omitempty"` // why it does not, or what else is wrong
}

// Keeper keeps the entry in the first configuration list. Its methods may be called concurrently.
type Keeper struct {
	config Config
	entry  cni.Entry
	times  times

	mu      sync.Mutex
	status  Status
	looked  bool
	removed bool
	file    string    // the first configuration list
	has     bool      // it had the entry when it was last looked at
	written time.Time // when it was given it; zero: not by this keeper
	losses  int       // how often another program took it out soon after
	retry   time.Time // it is not put back before
}

type times struct {
	check  time.Duration // between two looks without a notification
	settle time.Duration // how long changes are let to end before a look
	calm   time.Duration // an entry that stays for that long is not fought over
	first  time.Duration // before an entry is put back for the second time; doubled each time
	last   time.Duration // the longest such wait
}

// New makes a keeper. The caller calls Keep.
func New(c Config) *Keeper {
	k := &Keeper{config: c, entry: cni.NewEntry(c.AgentSocket, c.KubeletRoot), status: Status{Reason: "not looked at yet"}}
	k.times = times{
		check: 10 * time.Second, settle: 200 * time.Millisecond, calm: 10 * time.Minute, first: time.Second, last: 5 * time.Minute,
	}
	return k
}

// Status returns what the last look found.
func (k *Keeper) Status() Status {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.status
}

// Looked reports whether there was a look at the configurations.
func (k *Keeper) Looked() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.looked
}

// Remove takes the entry out of all configurations, as the function of that name does, and has Keep leave it out.
func (k *Keeper) Remove() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.removed = true
	k.set(Status{Reason: "it was taken out"})
	return Remove(k.config.Dir)
}

// Keep adds the entry to the first configuration list, puts it back when the main network writes its list anew, and
// follows when another file becomes the first. It returns when ctx is done and leaves the entry where it is: pods without
// our devices do not need the agent. What keeps it from its work is told by the status, and tried again.
func (k *Keeper) Keep(ctx context.Context) {
	var events chan fsnotify.Event
	var problems chan error
	watcher, err := fsnotify.NewWatcher()
	if err == nil { // else the ticker is slower, but enough
		events, problems = watcher.Events, watcher.Errors
		defer func() { _ = watcher.Close() }()
	}
	ticker := time.NewTicker(k.times.check)
	defer ticker.Stop()
	for {
		if watcher != nil {
			_ = watcher.Add(k.config.Dir) // each time: the directory may be made late, or anew
		}
		var again <-chan time.Time
		if wait := k.look(time.Now()); wait > 0 {
			again = time.After(wait)
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		case <-again:
		case _, ok := <-problems:
			if !ok {
				problems = nil
			}
		case _, ok := <-events:
			if !ok {
				events = nil
			}
			k.settle(ctx, events)
		}
	}
}

// settle waits until a writer seems to be done.
func (k *Keeper) settle(ctx context.Context, events <-chan fsnotify.Event) {
	limit := time.After(10 * k.times.settle)
	for {
		select {
		case <-ctx.Done():
			return
		case <-limit:
			return
		case <-time.After(k.times.settle):
			return
		case <-events:
		}
	}
}

// look does what is to be done now. It returns after which time to look again, or 0.
func (k *Keeper) look(now time.Time) time.Duration {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.removed {
		return 0
	}
	s, err := k.chain(now)
	if errors.Is(err, errChanged) {
		return k.times.settle
	}
	if err != nil {
		s.Reason = strings.ReplaceAll(err.Error(), "\n", "; ") // one line each, where errors were joined
	}
	k.looked = true
	k.set(s)
	return max(0, k.retry.Sub(now))
}

func (k *Keeper) set(s Status) {
	if s == k.status {
		return
	}
	k.status = s
	if k.config.Changed != nil {
		k.config.Changed(s)
	}
}

// chain sees to it that the first configuration has the entry. Its error is why it has not, or what else is wrong.
func (k *Keeper) chain(now time.Time) (Status, error) {
	if err := sweep(k.config.Dir); err != nil {
		return Status{}, err
	}
	names, err := configurations(k.config.Dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return Status{}, err
	}
	name, skipped := k.first(names)
	if name == "" {
		return Status{}, cmp.Or(skipped, fmt.Errorf("%s has no network configuration yet", k.config.Dir))
	}
	if k.file != name {
		k.file, k.has, k.written, k.losses, k.retry = name, false, time.Time{}, 0, time.Time{}
	}
	s := Status{File: name}
	f, l, err := k.read(name)
	if err == nil {
		err = k.ensure(now, f, l)
	}
	if err != nil {
		return s, errors.Join(err, skipped)
	}
	k.has, k.retry, s.Chained = true, time.Time{}, true
	return s, errors.Join(skipped, k.leave(names, name))
}

// first returns the configuration that the runtime uses, the first that is valid, and what is wrong with those before.
func (k *Keeper) first(names []string) (string, error) {
	var skipped []error
	for _, name := range names {
		f, err := readFile(filepath.Join(k.config.Dir, name))
		switch {
		case errors.Is(err, fs.ErrNotExist):
			continue // renamed or removed just now
		case err != nil:
			return name, errors.Join(skipped...)
		}
		if filepath.Ext(name) == ".conflist" {
			_, err = parseList(f.text)
		} else {
			_, err = singlePlugin(f.text)
		}
		if err == nil || errors.Is(err, errNoPlugins) {
			return name, errors.Join(skipped...)
		}
		skipped = append(skipped, fmt.Errorf("%s is not valid: %w", name, err))
	}
	return "", errors.Join(skipped...)
}

// read reads the first configuration and returns an error if it is none to add an entry to.
func (k *Keeper) read(name string) (*file, *list, error) {
	f, err := readFile(filepath.Join(k.config.Dir, name))
	if err != nil {
		return nil, nil, err
	}
	if filepath.Ext(name) != ".conflist" {
		kind, err := singlePlugin(f.text)
		if err != nil {
			return nil, nil, err
		}
		return nil, nil, fmt.Errorf("it is not a list but has the single plugin %s%s", kind, advice(kind))
	}
	l, err := parseList(f.text)
	if err != nil {
		return nil, nil, err
	}
	if kind := l.plugins[0].kind; isMultus(kind) {
		return nil, nil, fmt.Errorf("its first plugin is %s%s", kind, advice(kind))
	}
	for _, v := range l.versions {
		if versions := cni.Versions(); !slices.Contains(versions, v) { // it would refuse every pod
			return nil, nil, fmt.Errorf("it is of CNI version %s, the plugin speaks %s",
				cmp.Or(v, "0.1.0"), strings.Join(versions, ", "))
		}
	}
	return f, l, nil
}

// singlePlugin returns the type of the plugin of a configuration that is not a list.
func singlePlugin(text []byte) (string, error) {
	var has struct{ Type string }
	if !json.Valid(text) {
		return "", invalid(text)
	}
	if err := json.Unmarshal(text, &has); err != nil || has.Type == "" {
		return "", errors.New("it is not an object with a type")
	}
	return has.Type, nil
}

func isMultus(kind string) bool { return kind == "multus" || kind == "multus-shim" }

func advice(kind string) string {
	if isMultus(kind) {
		return ": have Multus call the plugin, by a NetworkAttachmentDefinition"
	}
	return ""
}

// binary returns an error unless the plugin is where the runtime will look for it: a chain that names a plugin which is
// not there stops every pod of the node.
func (k *Keeper) binary() error {
	path := filepath.Join(k.config.BinDir, cni.Type)
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return fmt.Errorf("the CNI plugin is not installed: %w", err)
	case !info.Mode().IsRegular() || info.Mode()&0o111 == 0:
		return fmt.Errorf("the CNI plugin is not installed: %s is not an executable file", path)
	}
	return nil
}

// ensure gives the first list the entry.
func (k *Keeper) ensure(now time.Time, f *file, l *list) error {
	missing, i := k.binary(), l.find()
	if i < 0 {
		if missing != nil {
			return missing
		}
		return k.add(now, f, l)
	}
	has, simple := l.entry(i)
	switch {
	case missing == nil && (!simple || has == k.entry):
		return nil
	case missing == nil:
		return write(f, "bring the entry up to date", func() (*list, error) { return l.update(i, k.entry) })
	case !simple:
		return fmt.Errorf("it has an entry that the agent did not write, but no pod can start: %w", missing)
	}
	k.has = false
	return cmp.Or(
		write(f, "take the entry out, with which no pod can start", func() (*list, error) { return l.remove(i) }),
		fmt.Errorf("the entry was taken out, since no pod could start: %w", missing))
}

// add writes the entry into the first list, unless another program takes it out as often as that is done.
func (k *Keeper) add(now time.Time, f *file, l *list) error {
	if k.has {
		k.has = false
		if now.Sub(k.written) > k.times.calm {
			k.losses = 0
		}
		if k.losses++; k.losses > 1 {
			k.retry = now.Add(min(k.times.first<<min(k.losses-2, 16), k.times.last))
		}
	}
	if now.Before(k.retry) {
		return fmt.Errorf("another program takes the entry out again and again, %d times now: "+
			"have it leave the file alone or write the entry itself; it is put back at %s", k.losses, k.retry.Format(time.TimeOnly))
	}
	if err := write(f, "add the entry", func() (*list, error) { return l.add(k.entry) }); err != nil {
		return err
	}
	k.written = now
	return nil
}

func write(f *file, doing string, edit func() (*list, error)) error {
	l, err := edit()
	if err == nil {
		err = f.replace(l.text)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", doing, err)
	}
	return nil
}

// leave takes the entry out of the configurations that are not the first any more. One that somebody else wrote stays.
func (k *Keeper) leave(names []string, first string) error {
	var errs []error
	for _, name := range names {
		if name == first || filepath.Ext(name) != ".conflist" {
			continue
		}
		f, err := readFile(filepath.Join(k.config.Dir, name))
		if err != nil {
			continue
		}
		l, err := parseList(f.text)
		if err != nil || !l.ours() {
			continue
		}
		errs = append(errs, write(f, "take the entry out of "+name+", which is not the first any more",
			func() (*list, error) { return l.remove(l.find()) }))
	}
	return errors.Join(errs...)
}
