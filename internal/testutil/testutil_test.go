package testutil

import (
	"net"
	"os"
	"testing"
)

func TestMain(m *testing.M) { os.Exit(Main(m)) }

func TestVethIsMadeRenamedAndRemoved(t *testing.T) {
	NeedKernel(t)
	t.Run("pair", func(t *testing.T) {
		Veth(t, VethPair{Near: "tvnear", Far: "tvfar", Queues: 4})
		if err := Rename("tvnear", "tvother"); err != nil {
			t.Fatal(err)
		}
		if err := Rename("tvother", "tvnear"); err != nil {
			t.Fatal(err)
		}
		entries, err := os.ReadDir("/sys/class/net/tvnear/queues")
		if err != nil || len(entries) != 8 {
			t.Fatalf("queues of tvnear: %v, %v; want 4 rx and 4 tx", entries, err)
		}
	})
	if _, err := net.InterfaceByName("tvfar"); err == nil {
		t.Fatal("the pair outlived its test")
	}
}

func TestNetnsIsAnother(t *testing.T) {
	NeedKernel(t)
	Veth(t, VethPair{Near: "tvnear", Far: "tvfar", Queues: 1})
	ns := NewNetns(t)
	err := ns.Do(func() error {
		if _, err := net.InterfaceByName("tvnear"); err == nil {
			t.Error("the new namespace shows the test's interface")
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestLeakIsNoticed(t *testing.T) {
	before := OpenFDs()
	f, err := os.Open("/dev/null")
	if err != nil {
		t.Fatal(err)
	}
	if leaked := LeakedFDs(before); len(leaked) != 1 {
		t.Errorf("leaked: %v, want the one of /dev/null", leaked)
	}
	f.Close()
	if leaked := LeakedFDs(before); leaked != nil {
		t.Errorf("leaked after close: %v", leaked)
	}
}
