package main

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// program builds the smallest program, static or not.
func program(t *testing.T, static bool) string {
	t.Helper()
	dir := t.TempDir()
	source := filepath.Join(dir, "main.go")
	text, cgo := "package main\nfunc main() {}\n", "CGO_ENABLED=0"
	if !static {
		text, cgo = "package main\nimport \"C\"\nfunc main() {}\n", "CGO_ENABLED=1"
	}
	if err := os.WriteFile(source, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("go", "build", "-trimpath", "-o", filepath.Join(dir, "agent"), source)
	cmd.Env = append(os.Environ(), cgo)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return filepath.Join(dir, "agent")
}

func example(t *testing.T, out string) options {
	return options{tag: "example/name:v1", arch: "arm64", version: "v1", commit: "abc", source: "https://example.com", out: out,
		programs: []string{program(t, true)}}
}

func TestImageHasTheProgramsAndSaysWhatItIs(t *testing.T) {
	o := example(t, filepath.Join(t.TempDir(), "new", "a.tar"))
	if err := write(o); err != nil {
		t.Fatal(err)
	}
	image, err := tarball.ImageFromPath(o.out, nil)
	if err != nil {
		t.Fatal(err)
	}
	config, err := image.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	c := config.Config
	if config.Architecture != "arm64" || config.OS != "linux" || c.User != "65532:65532" || !slices.Equal(c.Entrypoint, []string{"/agent"}) ||
		c.Labels["org.opencontainers.image.version"] != "v1" || c.Labels["org.opencontainers.image.revision"] != "abc" {
		t.Errorf("%s %s, %+v", config.OS, config.Architecture, c)
	}
	layers, err := image.Layers()
	if err != nil || len(layers) != 1 {
		t.Fatalf("%d layers, %v", len(layers), err)
	}
	want, err := os.ReadFile(o.programs[0])
	if err != nil {
		t.Fatal(err)
	}
	header, data := onlyFile(t, layers[0])
	if header.Name != "agent" || header.Mode != 0o755 || header.Uid != 0 || !bytes.Equal(data, want) {
		t.Errorf("%+v, %d bytes", header, len(data))
	}
	manifest, err := tarball.LoadManifest(func() (io.ReadCloser, error) { return os.Open(o.out) })
	if err != nil || !slices.Equal(manifest[0].RepoTags, []string{"example/name:v1"}) {
		t.Errorf("%+v, %v", manifest, err)
	}
}

func onlyFile(t *testing.T, l v1.Layer) (*tar.Header, []byte) {
	t.Helper()
	r, err := l.Uncompressed()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	archive := tar.NewReader(r)
	header, err := archive.Next()
	if err != nil {
		t.Fatal(err)
	}
	data, err := io.ReadAll(archive)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := archive.Next(); !errors.Is(err, io.EOF) {
		t.Errorf("there is more than one file: %v", err)
	}
	return header, data
}

func TestSameProgramsMakeTheSameBytes(t *testing.T) {
	o := example(t, filepath.Join(t.TempDir(), "a.tar"))
	var files [2][]byte
	for i := range files {
		if err := write(o); err != nil {
			t.Fatal(err)
		}
		var err error
		if files[i], err = os.ReadFile(o.out); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(files[0], files[1]) {
		t.Error("the second image differs")
	}
}

// In an image from scratch a dynamic program would fail with "no such file or directory".
func TestProgramsThatNeedALoaderAreRefused(t *testing.T) {
	o := example(t, filepath.Join(t.TempDir(), "a.tar"))
	o.programs = append(o.programs, program(t, false))
	if err := write(o); err == nil || !strings.Contains(err.Error(), "CGO_ENABLED=0") {
		t.Errorf("want a refusal, got %v", err)
	}
	o.programs = []string{"main_test.go"}
	if err := write(o); err == nil || !strings.Contains(err.Error(), "is no program") {
		t.Errorf("want a refusal, got %v", err)
	}
	if left, err := filepath.Glob(filepath.Dir(o.out) + "/*"); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

// Who builds with docker gets the same image.
func TestDockerfileSaysTheSame(t *testing.T) {
	text, err := os.ReadFile("../../../deployments/Dockerfile")
	if err != nil {
		t.Fatal(err)
	}
	makefile, err := os.ReadFile("../../../Makefile")
	if err != nil {
		t.Fatal(err)
	}
	o := example(t, "")
	image, err := build(o)
	if err != nil {
		t.Fatal(err)
	}
	config, err := image.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	programs := strings.Fields(string(regexp.MustCompile(`(?m)^PROGRAMS := (.*)$`).FindSubmatch(makefile)[1]))
	want := []string{"FROM scratch", "USER " + config.Config.User, "WORKDIR " + config.Config.WorkingDir, `ENTRYPOINT ["/` + programs[0] + `"]`}
	for label := range config.Config.Labels {
		want = append(want, label+"=")
	}
	for _, p := range programs {
		want = append(want, "./cmd/"+p)
	}
	for _, w := range want {
		if !strings.Contains(string(text), w) {
			t.Errorf("the Dockerfile has no %q", w)
		}
	}
}
