package kubelet

import (
	"context"
	"errors"
	"reflect"
	"strings"
	"testing"
)

// source is a kubelet that knows what it is made of.
type source struct {
	pods       []PodDevices
	cp         *Checkpoint
	podErr     error
	listErr    error
	cpErr      error
	listCalled bool
}

func (s *source) PodDevices(_ context.Context, namespace, name string) ([]Container, bool, error) {
	for _, p := range s.pods {
		if p.Namespace == namespace && p.Name == name {
			return p.Containers, true, s.podErr
		}
	}
	return nil, false, s.podErr
}

func (s *source) List(context.Context) ([]PodDevices, error) {
	s.listCalled = true
	return s.pods, s.listErr
}

func (s *source) Checkpoint() (Checkpoint, bool, error) {
	if s.cp == nil || s.cpErr != nil {
		return Checkpoint{}, false, s.cpErr
	}
	return *s.cp, true, nil
}

func podWith(name string, containers ...Container) PodDevices {
	return PodDevices{Namespace: "ns", Name: name, Containers: containers}
}

func container(name, resource string, ids ...string) Container {
	return Container{Name: name, Devices: []Devices{{Resource: resource, IDs: ids}}}
}

func entries(list ...Entry) *Checkpoint { return &Checkpoint{Entries: list} }

func TestPodAllocations(t *testing.T) {
	const fast, other = "afxdp.io/fast", "example.com/gpu"
	boom := errors.New("boom")
	for name, tc := range map[string]struct {
		src   source
		noUID bool
		want  []Allocation
		err   string
	}{
		"pod-resources and checkpoint agree": {
			src: source{pods: []PodDevices{podWith("p", container("app", fast, "q0", "q1"))},
				cp: entries(Entry{"u1", "app", fast, []string{"q0", "q1"}})},
			want: []Allocation{{fast, "app", []string{"q0", "q1"}}},
		},
		"the checkpoint adds the init container": {
			src: source{pods: []PodDevices{podWith("p", container("app", fast, "q0"))},
				cp: entries(Entry{"u1", "app", fast, []string{"q0"}}, Entry{"u1", "prepare", fast, []string{"q0", "q1"}})},
			want: []Allocation{{fast, "app", []string{"q0"}}, {fast, "prepare", []string{"q0", "q1"}}},
		},
		"only an init container has devices": {
			src: source{pods: []PodDevices{podWith("p", Container{Name: "app"})},
				cp: entries(Entry{"u1", "prepare", fast, []string{"q1"}})},
			want: []Allocation{{fast, "prepare", []string{"q1"}}},
		},
		"other domains and other pods are left out": {
			src: source{pods: []PodDevices{podWith("p", container("app", other, "gpu0"))},
				cp: entries(Entry{"u1", "app", other, []string{"gpu0"}}, Entry{"u2", "app", fast, []string{"q0"}})},
		},
		"two resources, two containers, sorted": {
			src: source{pods: []PodDevices{podWith("p", container("b", fast, "q3"), container("a", fast, "q2"),
				container("a", "afxdp.io/bulk", "q9"))}, cp: entries()},
			want: []Allocation{{"afxdp.io/bulk", "a", []string{"q9"}}, {fast, "a", []string{"q2"}}, {fast, "b", []string{"q3"}}},
		},
		"a resource without devices is no allocation": {
			src: source{pods: []PodDevices{podWith("p", container("app", fast))}, cp: entries()},
		},
		"no device plugin ever registered": {
			src: source{pods: []PodDevices{podWith("p", Container{Name: "app"})}},
		},
		"checkpoint lost, pod-resources knows": {
			src:  source{pods: []PodDevices{podWith("p", container("app", fast, "q0"))}},
			want: []Allocation{{fast, "app", []string{"q0"}}},
		},
		"no checkpoint and an unknown pod": {
			src: source{pods: []PodDevices{podWith("another")}}, err: "does not know the pod",
		},
		"a pod that pod-resources does not list, by UID": {
			src:  source{cp: entries(Entry{"u1", "app", fast, []string{"q0"}})},
			want: []Allocation{{fast, "app", []string{"q0"}}},
		},
		"a pod that pod-resources does not list, without devices": {
			src: source{cp: entries(Entry{"u2", "app", fast, []string{"q0"}})},
		},
		"a namesake's devices": {
			src: source{pods: []PodDevices{podWith("p", container("app", fast, "q0"))},
				cp: entries(Entry{"old", "app", fast, []string{"q0"}}, Entry{"u1", "app", fast, []string{"q1"}})},
			err: "has it for pod UID old",
		},
		"a device that is still on record for a pod that went": {
			src: source{pods: []PodDevices{podWith("p", container("app", fast, "q0"))},
				cp: entries(Entry{"u1", "app", fast, []string{"q0"}}, Entry{"old", "app", fast, []string{"q0"}})},
			want: []Allocation{{fast, "app", []string{"q0"}}},
		},
		"a namesake's devices of another domain do not matter": {
			src: source{pods: []PodDevices{podWith("p", container("app", other, "q0"))},
				cp: entries(Entry{"old", "app", other, []string{"q0"}})},
		},
		"pod-resources fails": {src: source{podErr: boom, cp: entries()}, err: "boom"},
		"checkpoint unreadable": {
			src: source{pods: []PodDevices{podWith("p")}, cpErr: boom}, err: "boom",
		},

		"no UID, all devices belong to listed pods": {
			src: source{
				pods: []PodDevices{podWith("p", container("app", fast, "q0")), podWith("r", container("app", fast, "q1"))},
				cp:   entries(Entry{"u1", "app", fast, []string{"q0"}}, Entry{"u2", "app", fast, []string{"q1"}}),
			},
			noUID: true, want: []Allocation{{fast, "app", []string{"q0"}}},
		},
		"no UID, a device is nobody's": {
			src: source{pods: []PodDevices{podWith("p", container("app", fast, "q0"))},
				cp: entries(Entry{"u1", "app", fast, []string{"q0"}}, Entry{"u1", "prepare", fast, []string{"q7"}})},
			noUID: true, err: "q7",
		},
		"no UID, the same id in another resource is not it": {
			src: source{pods: []PodDevices{podWith("p", container("app", "afxdp.io/bulk", "q7"))},
				cp: entries(Entry{"u1", "prepare", fast, []string{"q7"}})},
			noUID: true, err: "q7",
		},
		"no UID, nobody's device of another domain": {
			src: source{pods: []PodDevices{podWith("p", Container{Name: "app"})},
				cp: entries(Entry{"u1", "prepare", other, []string{"gpu0"}}), listErr: boom},
			noUID: true,
		},
		"no UID, unknown pod": {src: source{cp: entries()}, noUID: true, err: "no pod UID"},
		"no UID, List fails": {
			src: source{pods: []PodDevices{podWith("p")},
				cp: entries(Entry{"u", "c", fast, []string{"q"}}), listErr: boom},
			noUID: true, err: "boom",
		},
		"no UID, no checkpoint": {
			src:   source{pods: []PodDevices{podWith("p", container("app", fast, "q0"))}},
			noUID: true, want: []Allocation{{fast, "app", []string{"q0"}}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			pod := Pod{UID: "u1", Namespace: "ns", Name: "p"}
			if tc.noUID {
				pod.UID = ""
			}
			got, err := PodAllocations(t.Context(), &tc.src, pod, "afxdp.io")
			if tc.err != "" {
				if err == nil || !strings.Contains(err.Error(), tc.err) || got != nil {
					t.Errorf("got %v, %v; want an error with %q", got, err, tc.err)
				}
				return
			}
			if err != nil || !reflect.DeepEqual(got, tc.want) {
				t.Errorf("got %v, %v; want %v", got, err, tc.want)
			}
			if tc.src.listCalled && !tc.noUID {
				t.Error("listed all pods although the pod's UID is known")
			}
		})
	}
}
