package config

import (
	"reflect"
	"testing"
)

func TestMisspeltFieldIsRecognised(t *testing.T) {
	for in, want := range map[string]string{
		"naem": ": did you mean name?", "Name": ": did you mean name?", "queue": ": did you mean queues?",
		"zerocopy": ": did you mean zeroCopy?", "allowSharedNapi": ": did you mean allowSharedNAPI?",
		"deferHardIrqs": ": did you mean busyPoll.deferHardIRQs?", "maxRingSiz": ": did you mean limits.maxRingSize?",
		"drivers": ": did you mean nics.drivers?",
	} {
		if got := suggest(in, reflect.TypeFor[Pool]()); got != want {
			t.Errorf("%s%s, want %s", in, got, want)
		}
	}
	// Two letters of three are no resemblance.
	if got := suggest("ip", reflect.TypeFor[Selector]()); got != ": want one of names, drivers, pci, macs, numaNodes" {
		t.Errorf("ip%s", got)
	}
}
