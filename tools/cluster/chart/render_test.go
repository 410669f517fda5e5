package main

import (
	"flag"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/lint"
	"helm.sh/helm/v3/pkg/lint/support"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/yaml"
)

var update = flag.Bool("update", false, "write the golden files of charts/testdata and deployments/ again")

const (
	root     = "../../.."
	testdata = root + "/charts/testdata"
)

// mustRender renders the chart with values.
func mustRender(t *testing.T, values string) (files []file, notes string) {
	t.Helper()
	files, notes, err := render(filepath.Join(root, chartDir), release{Name: "afxdp", Namespace: "afxdp-system", Values: []byte(values)})
	if err != nil {
		t.Fatal(err)
	}
	return files, notes
}

// Each values file of charts/testdata has what is rendered with it beside it.
func TestRenderedIsAsKept(t *testing.T) {
	names, err := filepath.Glob(testdata + "/*.values.yaml")
	if err != nil || len(names) == 0 {
		t.Fatalf("no values in %s: %v", testdata, err)
	}
	for _, name := range names {
		name = strings.TrimSuffix(name, ".values.yaml")
		t.Run(filepath.Base(name), func(t *testing.T) {
			values, err := os.ReadFile(name + ".values.yaml")
			if err != nil {
				t.Fatal(err)
			}
			files, notes := mustRender(t, string(values))
			for _, object := range objects(t, files) {
				_ = object // decoded strictly: no field that Kubernetes does not know
			}
			compare(t, name+".golden.yaml", string(join(files)))
			compare(t, name+".golden.txt", notes)
		})
	}
}

func TestWhatIsMadeFromTheChartIsUpToDate(t *testing.T) {
	files, err := derived(root)
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range files {
		compare(t, filepath.Join(root, name), content)
	}
	for _, name := range []string{"deployments/afxdp.yaml", "deployments/uninstall.yaml"} {
		if strings.Contains(strings.ToLower(files[name]), "helm") {
			t.Errorf("%s speaks of helm", name)
		}
		_, content, _ := strings.Cut(files[name], "\n---\n")
		for document := range strings.SplitSeq(content, "\n---\n") {
			decode(t, document)
		}
	}
}

func TestExamplesFitPodSecurityAndTheChart(t *testing.T) {
	names, err := filepath.Glob(root + "/deployments/examples/*.yaml")
	if err != nil || len(names) == 0 {
		t.Fatalf("no examples: %v", err)
	}
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if filepath.Base(name) == "values.yaml" {
			mustRender(t, string(text))
			continue
		}
		for document := range strings.SplitSeq(string(text), "\n---\n") {
			switch o := decode(t, document).(type) {
			case *corev1.Pod:
				checkRestricted(t, o.Spec)
			case *appsv1.Deployment:
				checkRestricted(t, o.Spec.Template.Spec)
			}
		}
	}
}

func compare(t *testing.T, path, got string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got == string(want) {
		return
	}
	a, b := strings.Split(string(want), "\n"), strings.Split(got, "\n")
	for i := range a {
		if i >= len(b) || a[i] != b[i] {
			t.Errorf("%s is not what the chart gives (make manifests writes it again): line %d: %q", path, i+1, a[i])
			return
		}
	}
	t.Errorf("%s is not what the chart gives (make manifests writes it again): it ends at line %d", path, len(a))
}

// decode reads an object with the API's own types; a field that they lack is an error. Kinds of others are not checked.
func decode(t *testing.T, document string) runtime.Object {
	t.Helper()
	var head struct {
		APIVersion string `json:"apiVersion"`
		Kind       string `json:"kind"`
	}
	if err := yaml.Unmarshal([]byte(document), &head); err != nil {
		t.Fatalf("no YAML: %v\n%s", err, document)
	}
	if !scheme.Scheme.IsGroupRegistered(schema.FromAPIVersionAndKind(head.APIVersion, head.Kind).Group) {
		object := &unstructured.Unstructured{}
		if err := yaml.UnmarshalStrict([]byte(document), &object.Object); err != nil {
			t.Fatal(err)
		}
		return object
	}
	codecs := serializer.NewCodecFactory(scheme.Scheme, serializer.EnableStrict)
	object, _, err := codecs.UniversalDeserializer().Decode([]byte(document), nil, nil)
	if err != nil {
		t.Fatalf("%v\n%s", err, document)
	}
	return object
}

func objects(t *testing.T, files []file) []runtime.Object {
	t.Helper()
	var all []runtime.Object
	for _, f := range files {
		for _, o := range f.Objects {
			all = append(all, decode(t, o))
		}
	}
	return all
}

// find returns the object of a type and name.
func find[T runtime.Object](t *testing.T, files []file, name string) T {
	t.Helper()
	for _, o := range objects(t, files) {
		if typed, ok := o.(T); ok && any(typed).(interface{ GetName() string }).GetName() == name {
			return typed
		}
	}
	t.Fatalf("no %T %s", *new(T), name)
	panic("unreachable")
}

// everyCase calls f with what each values file of charts/testdata renders.
func everyCase(t *testing.T, f func(t *testing.T, files []file)) {
	names, err := filepath.Glob(testdata + "/*.values.yaml")
	if err != nil || len(names) == 0 {
		t.Fatalf("no values: %v", err)
	}
	for _, name := range names {
		t.Run(strings.TrimSuffix(filepath.Base(name), ".values.yaml"), func(t *testing.T) {
			values, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			files, _ := mustRender(t, string(values))
			f(t, files)
		})
	}
}

// Whatever the values: only the installer is privileged, the agent has the capabilities that it needs and no other, and
// no directory of the node is mounted beside those that it is known to need.
func TestRightsAreBounded(t *testing.T) {
	everyCase(t, func(t *testing.T, files []file) {
		ds := find[*appsv1.DaemonSet](t, files, "afxdp")
		pod := ds.Spec.Template.Spec
		if len(pod.Containers) != 1 || len(pod.InitContainers) != 1 {
			t.Fatalf("%d containers, %d init containers", len(pod.Containers), len(pod.InitContainers))
		}
		agent, installer := pod.Containers[0], pod.InitContainers[0]
		want := []corev1.Capability{"NET_ADMIN", "NET_RAW", "BPF", "IPC_LOCK"}
		if pod.HostPID {
			want = append(want, "SYS_NICE")
		}
		sc := agent.SecurityContext
		if !slices.Equal(sc.Capabilities.Add, want) || !slices.Equal(sc.Capabilities.Drop, []corev1.Capability{"ALL"}) {
			t.Errorf("capabilities: %v, without %v", sc.Capabilities.Add, sc.Capabilities.Drop)
		}
		if *sc.Privileged || *sc.AllowPrivilegeEscalation || !*sc.ReadOnlyRootFilesystem || *sc.RunAsUser != 0 {
			t.Errorf("security context of the agent: %v", sc)
		}
		if !*installer.SecurityContext.Privileged || !*installer.SecurityContext.ReadOnlyRootFilesystem {
			t.Errorf("security context of the installer: %v", installer.SecurityContext)
		}
		if pod.HostIPC || !pod.HostNetwork {
			t.Errorf("hostIPC %v, hostNetwork %v", pod.HostIPC, pod.HostNetwork)
		}
		known := map[string]string{"run": "/run/afxdp", "sys": "/sys", "bpffs": "/sys/fs/bpf", "irq": "/proc/irq",
			"device-plugins": "*/device-plugins", "pod-resources": "*/pod-resources", "cni-conf": "*", "cni-bin": "*", "cni-cache": "*"}
		for _, v := range pod.Volumes {
			if v.HostPath == nil {
				continue
			}
			pattern, ok := known[v.Name]
			if !ok || !strings.HasSuffix(v.HostPath.Path, strings.TrimPrefix(pattern, "*")) {
				t.Errorf("volume %s is %s of the node", v.Name, v.HostPath.Path)
			}
		}
		for _, m := range slices.Concat(agent.VolumeMounts, installer.VolumeMounts) {
			bidirectional := m.MountPropagation != nil && *m.MountPropagation == corev1.MountPropagationBidirectional
			if m.SubPath != "" || bidirectional && !(m.Name == "bpffs" && slices.ContainsFunc(installer.VolumeMounts,
				func(i corev1.VolumeMount) bool { return i.Name == m.Name && i.MountPropagation == m.MountPropagation })) {
				t.Errorf("mount %+v", m)
			}
		}
	})
}

// A changed pool must not replace an agent: nothing of the pod may depend on it.
func TestPoolsDoNotRestartAgents(t *testing.T) {
	a, _ := mustRender(t, "")
	b, _ := mustRender(t, "pools: [{name: fast, nics: {names: [eth1]}}]")
	if x, y := find[*appsv1.DaemonSet](t, a, "afxdp"), find[*appsv1.DaemonSet](t, b, "afxdp"); !reflect.DeepEqual(x, y) {
		t.Error("the DaemonSet differs with the pools")
	}
	if find[*corev1.ConfigMap](t, a, "afxdp").Data["config.yaml"] == find[*corev1.ConfigMap](t, b, "afxdp").Data["config.yaml"] {
		t.Error("the ConfigMap does not differ")
	}
}

// Field case 46: nothing of the node's layout or the cluster's habits is fixed.
func TestNodeLayoutIsValues(t *testing.T) {
	values, err := os.ReadFile(testdata + "/everything.values.yaml")
	if err != nil {
		t.Fatal(err)
	}
	files, _ := mustRender(t, string(values))
	for _, fixed := range []string{"/var/lib/kubelet", "/opt/cni/bin", "/etc/cni/net.d", "/var/lib/cni", "system-node-critical"} {
		if strings.Contains(string(join(files)), fixed) {
			t.Errorf("%q is there although the values have another", fixed)
		}
	}
}

// Field case 45: what pod security and SELinux would refuse is set, or not needed.
func TestPodsOfTheChartFitPodSecurity(t *testing.T) {
	everyCase(t, func(t *testing.T, files []file) {
		var pods []corev1.PodSpec
		for _, o := range objects(t, files) {
			switch o := o.(type) {
			case *batchv1.Job:
				pods = append(pods, o.Spec.Template.Spec)
			case *corev1.Pod:
				pods = append(pods, o.Spec)
			}
		}
		for _, p := range pods {
			checkRestricted(t, p)
		}
		ds := find[*appsv1.DaemonSet](t, files, "afxdp")
		sc := ds.Spec.Template.Spec.Containers[0].SecurityContext
		if sc.AppArmorProfile == nil || sc.SeccompProfile == nil {
			t.Errorf("AppArmor %v, seccomp %v", sc.AppArmorProfile, sc.SeccompProfile)
		}
	})
	files, _ := mustRender(t, "")
	if o := find[*appsv1.DaemonSet](t, files, "afxdp").Spec.Template.Spec.Containers[0].SecurityContext.SELinuxOptions; o == nil || o.Type != "spc_t" {
		t.Errorf("SELinux options: %v", o)
	}
}

func TestLint(t *testing.T) {
	linter := lint.AllWithKubeVersion(filepath.Join(root, chartDir), nil, "afxdp-system", &chartutil.KubeVersion{Version: "v1.30.0", Major: "1", Minor: "30"})
	for _, m := range linter.Messages {
		if m.Severity > support.InfoSev {
			t.Error(m)
		}
	}
}

func TestRBACIsMinimal(t *testing.T) {
	everyCase(t, func(t *testing.T, files []file) {
		for _, o := range objects(t, files) {
			var rules []rbacv1.PolicyRule
			switch o := o.(type) {
			case *rbacv1.ClusterRole:
				rules = o.Rules
			case *rbacv1.Role:
				rules = o.Rules
			}
			for _, r := range rules {
				for _, verb := range r.Verbs {
					right := strings.Join(r.Resources, ",") + " " + verb
					if !slices.Contains([]string{"events create", "events patch", "nodes get", "nodes list", "nodes watch",
						"nodes patch", "pods list"}, right) {
						t.Errorf("%T: %s", o, right)
					}
				}
			}
		}
	})
}

func TestMistakesInValuesAreRefused(t *testing.T) {
	pool := "pools: [{name: fast, nics: {names: [eth1]}, %s}]"
	for name, tt := range map[string]struct{ values, message string }{
		"unknown value":         {"kubeletroot: /var/lib/kubelet", "kubeletroot"},
		"unknown value inside":  {"cni: {chained: true}", "chained"},
		"relative path":         {"kubeletRoot: var/lib", "kubeletRoot"},
		"unknown field":         {strings.Replace(pool, "%s", "zerocopy: auto", 1), "zerocopy"},
		"unknown field inside":  {strings.Replace(pool, "%s", "busyPoll: {bugdet: 1}", 1), "bugdet"},
		"out of range":          {strings.Replace(pool, "%s", "busyPoll: {budget: 65536}", 1), "budget"},
		"no power of two":       {strings.Replace(pool, "%s", "limits: {maxRingSize: 1000}", 1), "maxRingSize"},
		"time without unit":     {strings.Replace(pool, "%s", "busyPoll: {timeout: 20}", 1), "timeout"},
		"pool without NICs":     {"pools: [{name: fast}]", "nics"},
		"no criterion":          {"pools: [{name: fast, nics: {}}]", "nics"},
		"pool name":             {"pools: [{name: Fast, nics: {names: [eth1]}}]", "name"},
		"off is no zero-copy":   {strings.Replace(pool, "%s", "zeroCopy: off", 1), "zeroCopy"},
		"digest":                {"image: {digest: abc}", "digest"},
		"Localhost needs which": {"seccompProfile: {type: Localhost}", "localhostProfile"},
		"monitor of nothing":    {"metrics: {serviceMonitor: {enabled: true}}", "metrics.serviceMonitor.enabled needs metrics.enabled"},
	} {
		t.Run(name, func(t *testing.T) {
			_, _, err := render(filepath.Join(root, chartDir), release{Name: "a", Namespace: "b", Values: []byte(tt.values)})
			if err == nil || !strings.Contains(err.Error(), tt.message) {
				t.Errorf("want an error with %q, got %v", tt.message, err)
			}
		})
	}
}

// Helm turns YAML into JSON on the way: large numbers must come out as they went in.
func TestPoolsArriveAsTheyWereWritten(t *testing.T) {
	files, _ := mustRender(t, "pools: [{name: a, nics: {macs: ['02:00:00:00:00:10']}, queues: 3, limits: {maxFrames: 8388608, maxUMEM: 17179869184}}]")
	text := find[*corev1.ConfigMap](t, files, "afxdp").Data["config.yaml"]
	for _, want := range []string{"maxFrames: 8388608\n", "maxUMEM: 17179869184\n", "queues: 3\n"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
}

// checkRestricted checks what the restricted pod security standard wants, and a read-only root filesystem.
func checkRestricted(t *testing.T, p corev1.PodSpec) {
	t.Helper()
	c := p.Containers[0].SecurityContext
	if p.HostNetwork || p.HostPID || p.HostIPC || !*p.SecurityContext.RunAsNonRoot || *p.SecurityContext.RunAsUser == 0 ||
		p.SecurityContext.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault || *c.AllowPrivilegeEscalation ||
		!*c.ReadOnlyRootFilesystem || len(c.Capabilities.Add) > 0 || !slices.Equal(c.Capabilities.Drop, []corev1.Capability{"ALL"}) {
		t.Errorf("not restricted: %v, %v", p.SecurityContext, c)
	}
}
