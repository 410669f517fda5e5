// Command image puts static programs into a container image without a base image, a registry or a daemon: a docker-archive,
// which docker load, kind load image-archive and ctr images import take. The same programs make the same bytes.
package main

import (
	"archive/tar"
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// nonRoot is the user of the image: a pod that needs another says so.
const nonRoot = "65532:65532"

type options struct {
	tag, arch, version, commit, source, out string
	programs                                []string // the first is the entrypoint
}

func main() {
	var o options
	flag.StringVar(&o.tag, "tag", "", "the image's name, such as example/name:v1")
	flag.StringVar(&o.arch, "arch", runtime.GOARCH, "architecture of the programs")
	flag.StringVar(&o.version, "version", "", "version, for the label")
	flag.StringVar(&o.commit, "commit", "", "commit, for the label")
	flag.StringVar(&o.source, "source", "", "where the source is, for the label")
	flag.StringVar(&o.out, "out", "", "file to write")
	flag.Usage = func() {
		_, _ = fmt.Fprintln(flag.CommandLine.Output(), "Usage: image --tag NAME:TAG --out FILE [flags] PROGRAM...\n\nFlags:")
		flag.PrintDefaults()
	}
	flag.Parse()
	o.programs = flag.Args()
	if err := write(o); err != nil {
		_, _ = fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
}

// write makes the image, and the file in one step.
func write(o options) (err error) {
	if o.tag == "" || o.out == "" || len(o.programs) == 0 {
		return errors.New("--tag, --out and at least one program are needed")
	}
	tag, err := name.NewTag(o.tag)
	if err != nil {
		return err
	}
	image, err := build(o)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(o.out), 0o755); err != nil {
		return err
	}
	temp := o.out + ".tmp"
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(temp))
		}
	}()
	if err := tarball.WriteToFile(temp, tag, image); err != nil {
		return fmt.Errorf("write %s: %w", temp, err)
	}
	return os.Rename(temp, o.out)
}

func build(o options) (v1.Image, error) {
	content, err := layer(o.programs)
	if err != nil {
		return nil, err
	}
	l, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(content)), nil })
	if err != nil {
		return nil, err
	}
	image, err := mutate.AppendLayers(empty.Image, l)
	if err != nil {
		return nil, err
	}
	config, err := image.ConfigFile()
	if err != nil {
		return nil, err
	}
	config = config.DeepCopy()
	config.Architecture, config.OS = o.arch, "linux"
	config.Created = v1.Time{Time: time.Unix(0, 0).UTC()}
	config.Config = v1.Config{
		Entrypoint: []string{"/" + filepath.Base(o.programs[0])},
		User:       nonRoot,
		WorkingDir: "/",
		Labels: map[string]string{
			"org.opencontainers.image.title":    "afxdp",
			"org.opencontainers.image.version":  o.version,
			"org.opencontainers.image.revision": o.commit,
			"org.opencontainers.image.source":   o.source,
			"org.opencontainers.image.licenses": "Apache-2.0",
		},
	}
	return mutate.ConfigFile(image, config)
}

// layer returns a tar archive with the programs in its root, owned by root, without times.
func layer(programs []string) ([]byte, error) {
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, p := range programs {
		data, err := os.ReadFile(p)
		if err != nil {
			return nil, err
		}
		if err := checkStatic(p, data); err != nil {
			return nil, err
		}
		h := &tar.Header{Name: filepath.Base(p), Mode: 0o755, Size: int64(len(data)), Typeflag: tar.TypeReg, ModTime: time.Unix(0, 0)}
		if err := w.WriteHeader(h); err != nil {
			return nil, err
		}
		if _, err := w.Write(data); err != nil {
			return nil, err
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}
