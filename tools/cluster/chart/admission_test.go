package main

import (
	"strings"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/initializer"
	"k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizerfactory"
	"k8s.io/apiserver/pkg/util/compatibility"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/yaml"
)

// apiServer is the part of an API server that judges by ValidatingAdmissionPolicies, with those of the chart.
type apiServer struct {
	plugin  *validating.Plugin
	objects admission.ObjectInterfaces
}

func newAPIServer(t *testing.T) apiServer {
	t.Helper()
	files, _ := mustRender(t, "")
	clients := []runtime.Object{&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default"}}}
	for _, o := range objects(t, files) {
		switch o := o.(type) {
		case *admissionregistrationv1.ValidatingAdmissionPolicy:
			withDefaults(o.Spec.MatchConstraints)
			clients = append(clients, o)
		case *admissionregistrationv1.ValidatingAdmissionPolicyBinding:
			clients = append(clients, o)
		}
	}
	if len(clients) != 5 {
		t.Fatalf("%d policies and bindings, want 4", len(clients)-1)
	}
	client := fake.NewClientset(clients...)
	factory := informers.NewSharedInformerFactory(client, 0)
	mapper := meta.NewDefaultRESTMapper([]schema.GroupVersion{corev1.SchemeGroupVersion})
	mapper.Add(corev1.SchemeGroupVersion.WithKind("Pod"), meta.RESTScopeNamespace)
	mapper.Add(corev1.SchemeGroupVersion.WithKind("Node"), meta.RESTScopeRoot)
	plugin, err := validating.NewPlugin(nil)
	if err != nil {
		t.Fatal(err)
	}
	initializer.New(client, dynamicfake.NewSimpleDynamicClient(scheme.Scheme), factory,
		authorizerfactory.NewAlwaysAllowAuthorizer(), utilfeature.DefaultFeatureGate,
		compatibility.DefaultBuildEffectiveVersion(), t.Context().Done(), mapper).Initialize(plugin)
	if err := plugin.ValidateInitialization(); err != nil {
		t.Fatal(err)
	}
	factory.Start(t.Context().Done())
	factory.WaitForCacheSync(t.Context().Done())
	for deadline := time.Now().Add(10 * time.Second); !plugin.WaitForReady(); {
		if time.Now().After(deadline) {
			t.Fatal("the policies are not ready")
		}
	}
	return apiServer{plugin, admission.NewObjectInterfacesFromScheme(scheme.Scheme)}
}

// withDefaults sets what an API server does when it stores a policy.
func withDefaults(m *admissionregistrationv1.MatchResources) {
	equivalent := admissionregistrationv1.Equivalent
	m.MatchPolicy, m.NamespaceSelector, m.ObjectSelector = &equivalent, &metav1.LabelSelector{}, &metav1.LabelSelector{}
}

// podVerdict returns why a pod is refused, "" when it is not. subresource is "" for a new pod.
func (s apiServer) podVerdict(t *testing.T, spec, subresource string) string {
	t.Helper()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "default"}}
	if err := yaml.UnmarshalStrict([]byte(spec), &pod.Spec); err != nil {
		t.Fatal(err)
	}
	operation, old := admission.Create, runtime.Object(nil)
	if subresource != "" {
		operation, old = admission.Update, pod
	}
	return verdict(s.plugin.Validate(t.Context(), admission.NewAttributesRecord(pod, old,
		corev1.SchemeGroupVersion.WithKind("Pod"), "default", "p", corev1.SchemeGroupVersion.WithResource("pods"), subresource,
		operation, nil, false, &user.DefaultInfo{Name: "someone"}), s.objects))
}

func verdict(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func TestPodsThatCouldLeaveThroughTheirQueuesAreRefused(t *testing.T) {
	s := newAPIServer(t)
	const (
		network = "pods with hostNetwork: true cannot have afxdp.io/ resources"
		strong  = "Container app: remove it from securityContext, or set hostUsers: false"
		queues  = "resources: {limits: {afxdp.io/fast: 1}, requests: {afxdp.io/fast: 1}}"
	)
	app := func(rest string) string { return "containers: [{name: app, " + rest + "}]" }
	for name, tt := range map[string]struct{ spec, subresource, refused string }{
		"no queues, privileged":    {spec: app("securityContext: {privileged: true}") + "\nhostNetwork: true"},
		"no queues, no resources":  {spec: app("image: a")},
		"another's resource":       {spec: app("resources: {limits: {example.com/afxdp.io: 1}}, securityContext: {privileged: true}")},
		"queues and nothing else":  {spec: app(queues)},
		"restricted":               {spec: app(queues + ", securityContext: {capabilities: {drop: [ALL]}, privileged: false}")},
		"harmless capability":      {spec: app(queues + ", securityContext: {capabilities: {add: [NET_BIND_SERVICE, NET_RAW, XNET_ADMIN]}}")},
		"drops NET_ADMIN":          {spec: app(queues + ", securityContext: {capabilities: {drop: [NET_ADMIN]}}")},
		"own user namespace":       {spec: app(queues+", securityContext: {capabilities: {add: [NET_ADMIN]}}") + "\nhostUsers: false"},
		"host network":             {spec: app(queues) + "\nhostNetwork: true", refused: network},
		"host network, user ns":    {spec: app(queues) + "\nhostNetwork: true\nhostUsers: false", refused: network},
		"NET_ADMIN":                {spec: app(queues + ", securityContext: {capabilities: {add: [NET_ADMIN]}}"), refused: strong},
		"SYS_ADMIN":                {spec: app(queues + ", securityContext: {capabilities: {add: [SYS_ADMIN]}}"), refused: strong},
		"ALL":                      {spec: app(queues + ", securityContext: {capabilities: {add: [ALL]}}"), refused: strong},
		"with prefix":              {spec: app(queues + ", securityContext: {capabilities: {add: [CAP_NET_ADMIN]}}"), refused: strong},
		"lower case":               {spec: app(queues + ", securityContext: {capabilities: {add: [net_admin]}}"), refused: strong},
		"among others":             {spec: app(queues + ", securityContext: {capabilities: {add: [CHOWN, SYS_ADMIN]}}"), refused: strong},
		"privileged":               {spec: app(queues + ", securityContext: {privileged: true}"), refused: strong},
		"privileged, host users":   {spec: app(queues+", securityContext: {privileged: true}") + "\nhostUsers: true", refused: strong},
		"limits only":              {spec: app("resources: {limits: {afxdp.io/fast: 1}}, securityContext: {privileged: true}"), refused: strong},
		"requests only":            {spec: app("resources: {requests: {afxdp.io/fast: 1}}, securityContext: {privileged: true}"), refused: strong},
		"another container asks":   {spec: "containers: [{name: app, securityContext: {privileged: true}}, {name: b, " + queues + "}]", refused: strong},
		"init container asks":      {spec: app("securityContext: {privileged: true}") + "\ninitContainers: [{name: i, " + queues + "}]", refused: strong},
		"init container is strong": {spec: app(queues) + "\ninitContainers: [{name: i, securityContext: {privileged: true}}]", refused: "Container i: remove it"},
		"debugging": {spec: app(queues) + "\nephemeralContainers: [{name: debug}]",
			subresource: "ephemeralcontainers"},
		"debugging with rights": {spec: app(queues) + "\nephemeralContainers: [{name: debug, securityContext: {capabilities: {add: [SYS_ADMIN]}}}]",
			subresource: "ephemeralcontainers", refused: "Container debug: remove it"},
		"debugging another's pod": {spec: app("image: a") + "\nephemeralContainers: [{name: debug, securityContext: {privileged: true}}]",
			subresource: "ephemeralcontainers"},
		// It is there already, from before the policy: whoever updates its status must not be stopped.
		"status of a pod that is there": {spec: app(queues + ", securityContext: {privileged: true}"), subresource: "status"},
	} {
		t.Run(name, func(t *testing.T) {
			got := s.podVerdict(t, tt.spec, tt.subresource)
			if tt.refused == "" && got != "" || tt.refused != "" && !strings.Contains(got, tt.refused) {
				t.Errorf("got %q, want %q", got, tt.refused)
			}
		})
	}
}

func TestAgentsChangeOnlyTheAnnotationsOfTheirNode(t *testing.T) {
	s := newAPIServer(t)
	const (
		agent     = "system:serviceaccount:afxdp-system:afxdp"
		uninstall = agent + "-uninstall"
		notOwn    = "the agent of a node may change that node only"
		notOurs   = "of a node only annotations that start with afxdp.io/ may be changed"
	)
	before := corev1.Node{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"},
		ObjectMeta: metav1.ObjectMeta{Name: "one", Labels: map[string]string{"a": "b"}, Finalizers: []string{"f"},
			Annotations: map[string]string{"other.io/x": "1", "afxdp.io/uninstall": "uid"}},
		Spec:   corev1.NodeSpec{PodCIDR: "10.0.0.0/24"},
		Status: corev1.NodeStatus{Capacity: corev1.ResourceList{}},
	}
	report := func(n *corev1.Node) { n.Annotations["afxdp.io/uninstall-report"] = "{}" }
	on := func(node string) map[string][]string {
		return map[string][]string{"authentication.kubernetes.io/node-name": {node}}
	}
	for name, tt := range map[string]struct {
		user    string
		extra   map[string][]string
		change  func(*corev1.Node)
		refused string
	}{
		"report":                {agent, on("one"), report, ""},
		"mark removed":          {agent, on("one"), func(n *corev1.Node) { delete(n.Annotations, "afxdp.io/uninstall") }, ""},
		"all annotations gone":  {agent, on("one"), func(n *corev1.Node) { n.Annotations = nil }, notOurs},
		"nothing":               {agent, on("one"), func(*corev1.Node) {}, ""},
		"another node":          {agent, on("two"), report, notOwn},
		"token without node":    {agent, nil, report, notOwn},
		"annotation of others":  {agent, on("one"), func(n *corev1.Node) { n.Annotations["other.io/x"] = "2" }, notOurs},
		"empty for missing":     {agent, on("one"), func(n *corev1.Node) { n.Annotations["other.io/y"] = "" }, notOurs},
		"annotation removed":    {agent, on("one"), func(n *corev1.Node) { delete(n.Annotations, "other.io/x") }, notOurs},
		"label":                 {agent, on("one"), func(n *corev1.Node) { n.Labels = map[string]string{"a": "c"} }, notOurs},
		"taint":                 {agent, on("one"), func(n *corev1.Node) { n.Spec.Taints = []corev1.Taint{{Key: "k"}} }, notOurs},
		"unschedulable":         {agent, on("one"), func(n *corev1.Node) { n.Spec.Unschedulable = true }, notOurs},
		"finalizers":            {agent, on("one"), func(n *corev1.Node) { n.Finalizers = nil }, notOurs},
		"owner":                 {agent, on("one"), func(n *corev1.Node) { n.OwnerReferences = []metav1.OwnerReference{{Name: "x"}} }, notOurs},
		"status":                {agent, on("one"), func(n *corev1.Node) { n.Status.Phase = "x" }, notOurs},
		"hook marks any node":   {uninstall, on("two"), report, ""},
		"hook and labels":       {uninstall, on("two"), func(n *corev1.Node) { n.Labels = nil }, notOurs},
		"others are not judged": {"system:node:one", nil, func(n *corev1.Node) { n.Labels = nil; n.Spec.Unschedulable = true }, ""},
		"same name elsewhere":   {"system:serviceaccount:default:afxdp", nil, func(n *corev1.Node) { n.Labels = nil }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			after := before.DeepCopy()
			tt.change(after)
			after.ResourceVersion = "2"
			got := verdict(s.plugin.Validate(t.Context(), admission.NewAttributesRecord(after, before.DeepCopy(),
				corev1.SchemeGroupVersion.WithKind("Node"), "", "one", corev1.SchemeGroupVersion.WithResource("nodes"), "",
				admission.Update, nil, false, &user.DefaultInfo{Name: tt.user, Extra: tt.extra}), s.objects))
			if tt.refused == "" && got != "" || tt.refused != "" && !strings.Contains(got, tt.refused) {
				t.Errorf("got %q, want %q", got, tt.refused)
			}
		})
	}
}
