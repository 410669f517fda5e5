//go:build e2e

package e2e

import (
	"context"
	"os"
	"runtime"
	"testing"
)

const (
	// The images of the checkout, as the Makefile names them.
	imageRepository = "afxdp-project/afxdp"
	podRepository   = "afxdp-project/e2e-pod"
	imageTag        = "e2e"
)

// loadImages has the workers know the two images: those of the checkout, unless AFXDP_E2E_IMAGE and AFXDP_E2E_POD_IMAGE
// name others in a registry.
func (c *cluster) loadImages(ctx context.Context, t *testing.T) {
	c.image, c.podImage = os.Getenv("AFXDP_E2E_IMAGE"), os.Getenv("AFXDP_E2E_POD_IMAGE")
	if c.image == "" {
		c.image = imageRepository + ":" + imageTag
		c.load(ctx, t, c.image, "../../build/images/afxdp-"+runtime.GOARCH+".tar")
	}
	if c.podImage == "" {
		c.podImage = podRepository + ":" + imageTag
		c.load(ctx, t, c.podImage, "../../build/images/e2e-pod-"+runtime.GOARCH+".tar")
	}
}

// load gives the workers an image from an archive, until the test ends.
func (c *cluster) load(ctx context.Context, t *testing.T, name, path string) {
	t.Helper()
	for _, n := range c.workers {
		archive, err := os.Open(path)
		if err != nil {
			t.Fatalf("%v: make e2e makes it", err)
		}
		_, err = n.run(ctx, archive, "ctr", "--namespace", "k8s.io", "images", "import", "-")
		archive.Close()
		if err != nil {
			t.Fatal(err)
		}
		if os.Getenv("AFXDP_E2E_KEEP") == "" {
			t.Cleanup(func() { n.do(t, "crictl", "--timeout", "60s", "rmi", name) })
		}
	}
}
