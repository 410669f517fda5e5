package initramfs

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

type file struct {
	mode, major, minor uint64
	data               string
}

// unpack reads an archive as the kernel does.
func unpack(t *testing.T, archive []byte) (names []string, files map[string]file) {
	t.Helper()
	files = make(map[string]file)
	for at := 0; ; {
		head := string(archive[at : at+110])
		if !strings.HasPrefix(head, "070701") || at%4 != 0 {
			t.Fatalf("entry at %d: %q", at, head)
		}
		field := func(i int) uint64 {
			v, err := strconv.ParseUint(head[6+8*i:14+8*i], 16, 32)
			if err != nil {
				t.Fatal(err)
			}
			return v
		}
		length := int(field(11))
		name := string(archive[at+110 : at+110+length-1])
		at = (at + 110 + length + 3) &^ 3
		if name == "TRAILER!!!" {
			if at != len(archive) {
				t.Fatalf("%d bytes after the end", len(archive)-at)
			}
			return names, files
		}
		size := int(field(6))
		names = append(names, name)
		files[name] = file{field(1), field(9), field(10), string(archive[at : at+size])}
		at = (at + size + 3) &^ 3
	}
}

func TestArchiveHasFilesAfterTheirDirectories(t *testing.T) {
	var b bytes.Buffer
	w := NewWriter(&b)
	w.CharDevice("dev/console", 5, 1)
	w.File("/init", 0o755, []byte("#!"))
	w.File("a/b/c", 0o644, []byte("five."))
	w.File("a/b/d", 0o600, nil)
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	names, files := unpack(t, b.Bytes())
	if got, want := fmt.Sprint(names), "[dev dev/console init a a/b a/b/c a/b/d]"; got != want {
		t.Errorf("entries %s, want %s", got, want)
	}
	for name, want := range map[string]file{
		"dev":         {mode: 0o040755},
		"dev/console": {mode: 0o020600, major: 5, minor: 1},
		"init":        {mode: 0o100755, data: "#!"},
		"a/b":         {mode: 0o040755},
		"a/b/c":       {mode: 0o100644, data: "five."},
		"a/b/d":       {mode: 0o100600},
	} {
		if files[name] != want {
			t.Errorf("%s: %+v, want %+v", name, files[name], want)
		}
	}
}

// module returns what a module file has of what is read here: an ELF file with a section .modinfo.
func module(t *testing.T, info string) []byte {
	t.Helper()
	const head, section = 64, 64
	names := "\x00.modinfo\x00.shstrtab\x00"
	var b bytes.Buffer
	h := elf.Header64{
		Ident: [16]byte{0x7f, 'E', 'L', 'F', byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB), byte(elf.EV_CURRENT)},
		Type:  uint16(elf.ET_REL), Machine: uint16(elf.EM_X86_64), Version: uint32(elf.EV_CURRENT),
		Shoff: uint64(head + len(info) + len(names)), Ehsize: head, Shentsize: section, Shnum: 3, Shstrndx: 2,
	}
	for _, part := range []any{
		h, []byte(info), []byte(names), elf.Section64{},
		elf.Section64{Name: 1, Type: uint32(elf.SHT_PROGBITS), Off: head, Size: uint64(len(info))},
		elf.Section64{Name: 10, Type: uint32(elf.SHT_STRTAB), Off: uint64(head + len(info)), Size: uint64(len(names))},
	} {
		if err := binary.Write(&b, binary.LittleEndian, part); err != nil {
			t.Fatal(err)
		}
	}
	return b.Bytes()
}

func TestModulesComeAfterThoseThatTheyNeed(t *testing.T) {
	dir := t.TempDir()
	for name, depends := range map[string]string{
		"igb.ko": "i2c-algo-bit,dca", "sub/i2c-algo-bit.ko": "", "dca.ko": "", "virtio_net.ko": "net_failover",
		"net_failover.ko": "failover", "sub/failover.ko": "", "unneeded.ko": "",
	} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, module(t, "license=GPL\x00depends="+depends+"\x00name=x\x00"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	modules, err := Modules(dir, "virtio_net", "built_in", "igb")
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, m := range modules {
		names = append(names, m.Name)
	}
	if got, want := fmt.Sprint(names), "[failover net_failover virtio_net i2c_algo_bit dca igb]"; got != want {
		t.Errorf("modules %s, want %s", got, want)
	}
}

func TestModuleThatIsNotThereIsNamed(t *testing.T) {
	for depends, want := range map[string]string{"gone": "no module gone (needed by igb)", "igb": "igb depends on itself"} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "igb.ko"), module(t, "depends="+depends+"\x00"), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Modules(dir, "igb"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "igb.ko.xz"), []byte("not xz"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Modules(dir, "igb"); err == nil || !strings.Contains(err.Error(), "decompress") {
		t.Errorf("%v, want that it cannot be decompressed", err)
	}
}
