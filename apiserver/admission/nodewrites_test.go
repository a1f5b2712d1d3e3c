package admission

import (
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	authenticationv1 "k8s.io/api/authentication/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	resourcev1 "k8s.io/api/resource/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coxswain-dev/coxswain/apiserver/admission/nodewrites"
)

// attack is a change by a node, and a part of the error; "" if the change is harmless, for the reason in the row.
type attack[T any] struct {
	name   string
	change func(T)
	words  string
}

// victimWorld has a compromised node, node-a, with the pod mine, and node-b with a ready pod at 10.244.1.7 and one
// that is not ready.
func victimWorld() (w *world, mine *corev1.Pod) {
	a := &corev1.Node{ObjectMeta: clusterMeta("node-a")}
	a.Spec.PodCIDRs = []string{"10.244.0.0/24", "fd00:1::/64"}
	a.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "127.0.0.1"},
		{Type: corev1.NodeInternalIP, Address: "10.0.0.1"}}
	a.Status.VolumesAttached = []corev1.AttachedVolume{{Name: "v"}}
	b := &corev1.Node{ObjectMeta: clusterMeta("node-b")}
	b.Spec.PodCIDRs = []string{"10.244.1.0/24"}
	ready := podOn("node-b", "ready", func(p *corev1.Pod) {
		p.Status.PodIP, p.Status.PodIPs = "10.244.1.7", []corev1.PodIP{{IP: "10.244.1.7"}, {IP: "fd00:2::7"}}
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	})
	unready := podOn("node-b", "gone", func(p *corev1.Pod) {
		p.Status.PodIP, p.Status.PodIPs = "172.16.0.9", []corev1.PodIP{{IP: "172.16.0.9"}}
	})
	mine = podOn("node-a", "mine", withToken(""), func(p *corev1.Pod) {
		p.Generation = 2
		p.Spec.InitContainers = []corev1.Container{{Name: "init"}}
		p.Spec.Containers = []corev1.Container{{Name: "main", Resources: corev1.ResourceRequirements{
			Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1"),
				corev1.ResourceMemory: resource.MustParse("1Gi")},
			Limits: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("2Gi")},
		}}}
		p.Spec.EphemeralContainers = []corev1.EphemeralContainer{{
			EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: "debugger"}}}
		p.Status.Phase = corev1.PodRunning
	})
	return newWorld(a, b, ready, unready, mine, &corev1.ServiceAccount{ObjectMeta: meta("robot")},
		&networkingv1.ServiceCIDR{ObjectMeta: clusterMeta("kubernetes"),
			Spec: networkingv1.ServiceCIDRSpec{CIDRs: []string{"10.96.0.0/16", "fd96::/112"}}}), mine
}

func podIPs(ips ...string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Status.PodIP, p.Status.PodIPs = ips[0], nil
		for _, ip := range ips {
			p.Status.PodIPs = append(p.Status.PodIPs, corev1.PodIP{IP: ip})
		}
	}
}

func hostIPs(ips ...string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Status.HostIP, p.Status.HostIPs = ips[0], nil
		for _, ip := range ips {
			p.Status.HostIPs = append(p.Status.HostIPs, corev1.HostIP{IP: ip})
		}
	}
}

func withConditions(all ...corev1.PodCondition) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Status.Conditions = all }
}

func ofCPU(cpu string) corev1.ResourceList {
	return corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)}
}

// ofStatuses returns attacks by a list of container statuses.
func ofStatuses(list func(*corev1.Pod) *[]corev1.ContainerStatus, container string) []attack[*corev1.Pod] {
	set := func(statuses ...corev1.ContainerStatus) func(*corev1.Pod) {
		return func(p *corev1.Pod) { *list(p) = statuses }
	}
	return []attack[*corev1.Pod]{
		{"of its container", set(corev1.ContainerStatus{Name: container, RestartCount: 3}), ""},
		{"of a container that the spec does not have", set(corev1.ContainerStatus{Name: "miner"}),
			`there is no container "miner"`},
		{"of more containers than there are", set(corev1.ContainerStatus{Name: container},
			corev1.ContainerStatus{Name: container}), "must have at most 1 items, not 2"},
		{"of restarts below zero", set(corev1.ContainerStatus{Name: container, RestartCount: -1}),
			"restartCount must not be negative"},
		{"of resources that a quota is charged for", set(corev1.ContainerStatus{Name: container,
			AllocatedResources: ofCPU("1000")}), "1k of cpu is not what the spec asks for"},
		{"of limits that a quota is charged for", set(corev1.ContainerStatus{Name: container,
			Resources: &corev1.ResourceRequirements{Limits: ofCPU("1000")}}), "1k of cpu is not what the spec asks for"},
		{"of requests that a quota is charged for", set(corev1.ContainerStatus{Name: container,
			Resources: &corev1.ResourceRequirements{Requests: ofCPU("1000")}}), "1k of cpu is not what the spec asks for"},
		{"of negative resources", set(corev1.ContainerStatus{Name: container, AllocatedResources: ofCPU("-1")}),
			"-1 of cpu is not what the spec asks for"},
		{"of a resource that the spec does not name", set(corev1.ContainerStatus{Name: container,
			AllocatedResources: corev1.ResourceList{"example.com/gpu": resource.MustParse("1")}}),
			"1 of example.com/gpu is not what the spec asks for"},
	}
}

const longText = nodewrites.MaxMessage + 1

var podAttacks = map[string][]attack[*corev1.Pod]{
	"observedGeneration": {
		{"its pod's", func(p *corev1.Pod) { p.Status.ObservedGeneration = 2 }, ""},
		{"one that is to come", func(p *corev1.Pod) { p.Status.ObservedGeneration = 3 }, "is not between 0 and"},
		{"a negative one", func(p *corev1.Pod) { p.Status.ObservedGeneration = -1 }, "is not between 0 and"},
	},
	"phase": {
		{"the end", func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }, ""},
		{"none that Kubernetes has", func(p *corev1.Pod) { p.Status.Phase = "Sleeping" }, `"Sleeping" is no phase`},
	},
	"conditions": {
		{"ready", withConditions(corev1.PodCondition{Type: corev1.PodReady, Status: corev1.ConditionTrue}), ""},
		{"one twice", withConditions(corev1.PodCondition{Type: "a"}, corev1.PodCondition{Type: "a"}), "more than one"},
		{"not scheduled", withConditions(corev1.PodCondition{Type: corev1.PodScheduled, Status: corev1.ConditionFalse}),
			"has been scheduled"},
		{"very many", withConditions(make([]corev1.PodCondition, nodewrites.MaxConditions+1)...), "must have at most 200 items"},
	},
	"message": {
		{"a long one", func(p *corev1.Pod) { p.Status.Message = strings.Repeat("a", longText) }, "at most 65536 bytes"},
	},
	"reason": {
		{"a long one", func(p *corev1.Pod) { p.Status.Reason = strings.Repeat("a", longText) }, "at most 65536 bytes"},
	},
	"nominatedNodeName": {
		{"another node", func(p *corev1.Pod) { p.Status.NominatedNodeName = "node-b" }, "a node may not change it"},
	},
	"hostIP": {
		{"its Node's", hostIPs("10.0.0.1"), ""},
		{"a loopback address of its Node", hostIPs("127.0.0.1"), ""},
		{"another loopback address", func(p *corev1.Pod) { p.Status.HostIP = "127.0.0.2" }, "a loopback address"},
		{"an address of Services", func(p *corev1.Pod) { p.Status.HostIP = "10.96.0.1" }, "an address of Services"},
		{"no address", func(p *corev1.Pod) { p.Status.HostIP = "node-b" }, "is not an IP address"},
	},
	"hostIPs": {
		{"an address of Services", hostIPs("10.0.0.1", "fd96::1"), "an address of Services"},
		{"many", hostIPs("10.0.0.1", "10.244.0.1", "10.244.0.2", "10.244.0.3"), "more than two addresses"},
	},
	"podIP": {
		{"one of its Node's range", podIPs("10.244.0.7"), ""},
		{"one that a network plugin has given", podIPs("192.168.4.4"), ""},
		{"that of its Node, for a pod in the host's network", podIPs("127.0.0.1"), ""},
		{"one that a pod had which is gone with its node", podIPs("172.16.0.9"), ""},
		{"that of another node's pod", podIPs("10.244.1.7"), "the address of a pod on another node"},
		{"an address of Services", podIPs("10.96.0.10"), "an address of Services"},
		{"loopback", podIPs("127.0.0.53"), "a loopback address"},
		{"unspecified", podIPs("0.0.0.0"), "no node and no pod"},
		{"multicast", podIPs("224.0.0.251"), "no node and no pod"},
		{"broadcast", podIPs("255.255.255.255"), "no node and no pod"},
		{"link-local, such as a cloud's metadata", podIPs("169.254.169.254"), "no node and no pod"},
		{"an address of Services, mapped", podIPs("::ffff:10.96.0.1"), "an address of Services"},
		{"an address with a zone", podIPs("fe80::1%eth0"), "is not an IP address"},
		{"a name", podIPs("kubernetes.default.svc"), "is not an IP address"},
		{"a name without a list", func(p *corev1.Pod) { p.Status.PodIP = "x" }, "is not an IP address"},
		{"an address of Services without a list", func(p *corev1.Pod) { p.Status.PodIP = "10.96.0.1" },
			"an address of Services"},
	},
	"podIPs": {
		{"one of each family", podIPs("10.244.0.7", "fd00:1::7"), ""},
		{"the second is another pod's", podIPs("10.244.0.7", "fd00:2::7"), "the address of a pod on another node"},
		{"the second is another pod's in other words", podIPs("10.244.0.7", "FD00:2:0::7"),
			"the address of a pod on another node"},
		{"the second is of Services", podIPs("10.244.0.7", "fd96::7"), "an address of Services"},
		{"others than podIP", func(p *corev1.Pod) { podIPs("10.244.0.7")(p); p.Status.PodIP = "10.244.0.8" },
			"must be the first of podIPs"},
		{"many", podIPs("10.244.0.1", "10.244.0.2", "10.244.0.3", "10.244.0.4"), "more than two addresses"},
	},
	"startTime": {
		{"long ago", func(p *corev1.Pod) { p.Status.StartTime = &metav1.Time{Time: time.Unix(1, 0)} }, ""},
	},
	"initContainerStatuses": ofStatuses(func(p *corev1.Pod) *[]corev1.ContainerStatus {
		return &p.Status.InitContainerStatuses
	}, "init"),
	"containerStatuses": append(ofStatuses(func(p *corev1.Pod) *[]corev1.ContainerStatus {
		return &p.Status.ContainerStatuses
	}, "main"), attack[*corev1.Pod]{"of what its cgroup has", func(p *corev1.Pod) {
		p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "main", AllocatedResources: ofCPU("1"),
			Resources: &corev1.ResourceRequirements{Requests: ofCPU("1001m")}}}
	}, ""}),
	"qosClass": {
		{"another, which validation refuses", func(p *corev1.Pod) { p.Status.QOSClass = corev1.PodQOSGuaranteed }, ""},
	},
	"ephemeralContainerStatuses": ofStatuses(func(p *corev1.Pod) *[]corev1.ContainerStatus {
		return &p.Status.EphemeralContainerStatuses
	}, "debugger"),
	"resize": {
		{"a state", func(p *corev1.Pod) { p.Status.Resize = corev1.PodResizeStatusDeferred }, ""},
		{"no state", func(p *corev1.Pod) { p.Status.Resize = "x" }, `"x" is no state of a resize`},
	},
	"resourceClaimStatuses": {
		{"another claim", func(p *corev1.Pod) {
			p.Status.ResourceClaimStatuses = []corev1.PodResourceClaimStatus{{Name: "gpu", ResourceClaimName: new("theirs")}}
		}, "cannot update resource claim statues"},
	},
	"extendedResourceClaimStatus": {
		{"another claim", func(p *corev1.Pod) {
			p.Status.ExtendedResourceClaimStatus = &corev1.PodExtendedResourceClaimStatus{ResourceClaimName: "theirs"}
		}, "cannot update extended resource claim status"},
	},
	"allocatedResources": {
		{"what the spec asks for", func(p *corev1.Pod) { p.Status.AllocatedResources = ofCPU("1") }, ""},
		{"more", func(p *corev1.Pod) { p.Status.AllocatedResources = ofCPU("1000") }, "is not what the spec asks for"},
	},
	"resources": {
		{"what the spec asks for", func(p *corev1.Pod) {
			p.Status.Resources = &corev1.ResourceRequirements{Requests: ofCPU("1")}
		}, ""},
		{"more", func(p *corev1.Pod) {
			p.Status.Resources = &corev1.ResourceRequirements{Requests: ofCPU("1000")}
		}, "is not what the spec asks for"},
	},
	"nodeAllocatableResourceClaimStatuses": {
		{"another claim", func(p *corev1.Pod) {
			p.Status.NodeAllocatableResourceClaimStatuses = []corev1.NodeAllocatableResourceClaimStatus{
				{ResourceClaimName: "theirs"}}
		}, "a node may not change it"},
	},
	"volumeHealth": {
		{"of its volume", func(p *corev1.Pod) { p.Status.VolumeHealth = []corev1.PodVolumeHealth{{Name: "token"}} }, ""},
		{"of a volume that the spec does not have", func(p *corev1.Pod) {
			p.Status.VolumeHealth = []corev1.PodVolumeHealth{{Name: "x"}}
		}, `there is no volume "x"`},
		{"of more volumes than there are", func(p *corev1.Pod) {
			p.Status.VolumeHealth = []corev1.PodVolumeHealth{{Name: "token"}, {Name: "token"}}
		}, "must have at most 1 items"},
	},
}

func nodeAddress(address string) func(*corev1.Node) {
	return func(n *corev1.Node) {
		n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: address}}
	}
}

func ofCapacity(list func(*corev1.Node) *corev1.ResourceList) []attack[*corev1.Node] {
	set := func(name corev1.ResourceName, amount string) func(*corev1.Node) {
		return func(n *corev1.Node) { *list(n) = corev1.ResourceList{name: resource.MustParse(amount)} }
	}
	return []attack[*corev1.Node]{
		{"that of a large machine", set("memory", "64Ti"), ""},
		{"more CPUs than there are", set("cpu", "1000000001"), "cpu: must be at most 1G"},
		{"more memory than there is", set("memory", "2Ei"), "memory: must be at most 1Ei"},
		{"more devices than there are", set("example.com/gpu", "9e18"), "example.com/gpu: must be at most"},
		{"very many resources", func(n *corev1.Node) {
			*list(n) = corev1.ResourceList{}
			for i := range nodewrites.MaxResources + 1 {
				(*list(n))[corev1.ResourceName("example.com/"+strings.Repeat("a", i))] = resource.MustParse("1")
			}
		}, "must have at most 1000 items"},
	}
}

var nodeAttacks = map[string][]attack[*corev1.Node]{
	"capacity":    ofCapacity(func(n *corev1.Node) *corev1.ResourceList { return &n.Status.Capacity }),
	"allocatable": ofCapacity(func(n *corev1.Node) *corev1.ResourceList { return &n.Status.Allocatable }),
	"phase":       {{"any", func(n *corev1.Node) { n.Status.Phase = "x" }, ""}},
	"conditions": {
		{"ready", func(n *corev1.Node) { n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady}} }, ""},
		{"one twice", func(n *corev1.Node) {
			n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady}, {Type: corev1.NodeReady}}
		}, `there is more than one "Ready"`},
		{"very many", func(n *corev1.Node) { n.Status.Conditions = make([]corev1.NodeCondition, nodewrites.MaxConditions+1) },
			"must have at most 200 items"},
	},
	"addresses": {
		{"one of a machine", nodeAddress("10.0.0.9"), ""},
		{"that of the API server's machine", nodeAddress("::1"), ""},
		{"that of another node's pod", nodeAddress("10.244.1.7"), "the address of a pod on another node"},
		{"that of another node's pod, mapped", nodeAddress("::ffff:10.244.1.7"), "the address of a pod on another node"},
		{"that of another node's pod in other words", nodeAddress("fd00:2::0:7"), "the address of a pod on another node"},
		{"an address of Services", nodeAddress("10.96.0.1"), "an address of Services"},
		{"an address of Services as a name", func(n *corev1.Node) {
			n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeHostName, Address: "10.96.0.1"}}
		}, "an address of Services"},
		{"unspecified", nodeAddress("::"), "no node and no pod"},
		{"multicast", nodeAddress("ff02::1"), "no node and no pod"},
		{"link-local, such as a cloud's metadata", nodeAddress("169.254.169.254"), "no node and no pod"},
		{"a name as an address", nodeAddress("kubernetes"), "is not an IP address"},
		{"a long name", func(n *corev1.Node) {
			n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeHostName, Address: strings.Repeat("a", 254)}}
		}, "at most 253 characters"},
		{"very many", func(n *corev1.Node) { n.Status.Addresses = make([]corev1.NodeAddress, nodewrites.MaxAddresses+1) },
			"must have at most 100 items"},
	},
	"daemonEndpoints": {
		{"its port", func(n *corev1.Node) { n.Status.DaemonEndpoints.KubeletEndpoint.Port = 10250 }, ""},
		{"no port", func(n *corev1.Node) { n.Status.DaemonEndpoints.KubeletEndpoint.Port = 65536 }, "between 0 and 65535"},
		{"a negative one", func(n *corev1.Node) { n.Status.DaemonEndpoints.KubeletEndpoint.Port = -1 },
			"between 0 and 65535"},
	},
	"nodeInfo": {{"any", func(n *corev1.Node) { n.Status.NodeInfo.KubeletVersion = "x" }, ""}},
	"images": {{"very many", func(n *corev1.Node) { n.Status.Images = make([]corev1.ContainerImage, nodewrites.MaxImages+1) },
		"must have at most 5000 items"}},
	"volumesInUse": {{"very many", func(n *corev1.Node) {
		n.Status.VolumesInUse = make([]corev1.UniqueVolumeName, nodewrites.MaxVolumes+1)
	}, "must have at most 5000 items"}},
	"volumesAttached": {
		{"another", func(n *corev1.Node) { n.Status.VolumesAttached = []corev1.AttachedVolume{{Name: "theirs"}} },
			"a node may not change it"},
		{"none", func(n *corev1.Node) { n.Status.VolumesAttached = nil }, "a node may not change it"},
	},
	"config": {{"one", func(n *corev1.Node) { n.Status.Config = &corev1.NodeConfigStatus{Error: "x"} },
		"a node may not change it"}},
	"runtimeHandlers": {{"very many", func(n *corev1.Node) {
		n.Status.RuntimeHandlers = make([]corev1.NodeRuntimeHandler, nodewrites.MaxResources+1)
	}, "must have at most 1000 items"}},
	"features": {{"any", func(n *corev1.Node) { n.Status.Features = &corev1.NodeFeatures{} }, ""}},
	"declaredFeatures": {{"very many", func(n *corev1.Node) {
		n.Status.DeclaredFeatures = make([]string, nodewrites.MaxResources+1)
	}, "must have at most 1000 items"}},
}

// fieldsOf returns the fields of a struct, by their names in JSON.
func fieldsOf[T any]() []string {
	var names []string
	for _, f := range reflect.VisibleFields(reflect.TypeFor[T]()) {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

func rowsOf[T any](t *testing.T, table []nodewrites.Row[T]) []string {
	var names []string
	for _, row := range table {
		require.NotEmpty(t, row.ActedOnBy, row.Field)
		require.NotEmpty(t, row.Bound, row.Field)
		names = append(names, row.Field)
	}
	slices.Sort(names)
	return names
}

func TestNodeWrites_HaveARowForEachFieldOfAStatus(t *testing.T) {
	t.Parallel()
	require.Equal(t, fieldsOf[corev1.PodStatus](), rowsOf(t, nodewrites.PodStatus), "add a row, and an attack")
	require.Equal(t, fieldsOf[corev1.NodeStatus](), rowsOf(t, nodewrites.NodeStatus), "add a row, and an attack")
	require.Len(t, podAttacks, len(nodewrites.PodStatus))
	require.Len(t, nodeAttacks, len(nodewrites.NodeStatus))
}

func TestNodeWrites_LimitAPodsStatus(t *testing.T) {
	t.Parallel()
	w, mine := victimWorld()
	for _, row := range nodewrites.PodStatus {
		require.NotEmpty(t, podAttacks[row.Field], row.Field)
		for _, attack := range podAttacks[row.Field] {
			write := func() *Attributes { return subresource(updates(made(mine, attack.change), mine), "status") }
			w.decides(t, "NodeRestriction", "", byNode([]decision{
				{name: row.Field + ": " + attack.name, write: write(), words: attack.words}}))
			require.NoError(t, w.admit(t, "NodeRestriction", "", as(write(), "controller")), "others are not held to it")
			require.ErrorContains(t, w.admit(t, "NodeRestriction", "", as(write(), "system:node:node-b", "system:nodes")),
				"with spec.nodeName set to itself", row.Field)
		}
	}
}

func TestNodeWrites_LimitANodesStatus(t *testing.T) {
	t.Parallel()
	w, _ := victimWorld()
	node, err := get[*corev1.Node](t.Context(), w, nodes, "", "node-a")
	require.NoError(t, err)
	for _, row := range nodewrites.NodeStatus {
		require.NotEmpty(t, nodeAttacks[row.Field], row.Field)
		for _, attack := range nodeAttacks[row.Field] {
			changed := made(node, attack.change)
			decisions := []decision{{name: row.Field + ": " + attack.name,
				write: subresource(updates(changed, node), "status"), words: attack.words}}
			if row.Field != "volumesAttached" && row.Field != "config" {
				registered := made(changed, func(n *corev1.Node) { n.Status.VolumesAttached = nil })
				decisions = append(decisions, decision{name: row.Field + " at registration: " + attack.name,
					write: creates(registered), words: attack.words})
			}
			w.decides(t, "NodeRestriction", "", byNode(decisions))
			require.NoError(t, w.admit(t, "NodeRestriction", "", as(subresource(updates(changed, node), "status"), "controller")),
				"others are not held to it")
			require.ErrorContains(t, w.admit(t, "NodeRestriction", "",
				as(subresource(updates(changed, node), "status"), "system:node:node-b", "system:nodes")), "not allowed to modify node")
		}
	}
}

// TestNodeWrites_DoNotRestartEndedPods checks a promise to controllers, quotas and the scheduler, which no
// longer count such pods.
func TestNodeWrites_DoNotRestartEndedPods(t *testing.T) {
	t.Parallel()
	w, mine := victimWorld()
	phases := []corev1.PodPhase{corev1.PodPending, corev1.PodRunning, corev1.PodSucceeded, corev1.PodFailed,
		corev1.PodUnknown, ""}
	for _, was := range phases {
		for _, is := range phases {
			before := made(mine, func(p *corev1.Pod) { p.Status.Phase = was })
			d := decision{name: string(was + "-" + is), write: subresource(updates(made(mine, func(p *corev1.Pod) {
				p.Status.Phase = is
			}), before), "status")}
			if is != was && (was == corev1.PodSucceeded || was == corev1.PodFailed) {
				d.words = "a pod that has " + string(was) + " does not become " + string(is)
			}
			w.decides(t, "NodeRestriction", "", byNode([]decision{d}))
		}
	}
}

// TestNodeWrites_KeepExistingValues has statuses that other users wrote, or that an earlier version accepted.
func TestNodeWrites_KeepExistingValues(t *testing.T) {
	t.Parallel()
	w, mine := victimWorld()
	for _, field := range []string{"podIP", "podIPs", "hostIP", "nominatedNodeName", "containerStatuses", "conditions",
		"resourceClaimStatuses", "allocatedResources"} {
		for _, attack := range podAttacks[field] {
			if attack.name == "of negative resources" || attack.name == "others than podIP" {
				continue
			}
			there := made(mine, attack.change)
			require.NoError(t, w.admit(t, "NodeRestriction", "", as(subresource(updates(there, there), "status"), "system:node:node-a",
				"system:nodes")), field+": "+attack.name)
		}
	}
}

// TestNodeWrites_LimitOtherKinds has an attack for each row of Others.
func TestNodeWrites_LimitOtherKinds(t *testing.T) {
	t.Parallel()
	w, mine := victimWorld()
	node, err := get[*corev1.Node](t.Context(), w, nodes, "", "node-a")
	require.NoError(t, err)
	newNode := &corev1.Node{ObjectMeta: clusterMeta("node-a")}
	ofNode := func(change func(*corev1.Node)) *Attributes { return updates(made(node, change), node) }
	pvc := &corev1.PersistentVolumeClaim{ObjectMeta: meta("c")}
	attacks := map[string][]decision{
		"nodes metadata": {
			{write: ofNode(func(n *corev1.Node) { n.Labels = map[string]string{"node-role.kubernetes.io/control-plane": ""} }),
				words: "is not allowed to modify labels"},
			{write: ofNode(func(n *corev1.Node) { n.OwnerReferences = []metav1.OwnerReference{{Name: "x"}} }),
				words: "is not allowed to modify ownerReferences"}},
		"nodes spec.taints": {{write: ofNode(func(n *corev1.Node) { n.Spec.Taints = []corev1.Taint{{Key: "k"}} }),
			words: "is not allowed to modify taints"}},
		"nodes spec.podCIDRs": {
			{write: creates(made(newNode, func(n *corev1.Node) { n.Spec.PodCIDRs = []string{"10.244.9.0/24"} }))},
			{write: creates(made(newNode, func(n *corev1.Node) { n.Spec.PodCIDRs = []string{"10.244.1.0/24"} })),
				words: "10.244.1.0/24 overlaps with the range of another Node"},
			{write: creates(made(newNode, func(n *corev1.Node) { n.Spec.PodCIDRs = []string{"10.244.9.0/24", "10.0.0.0/8"} })),
				words: "overlaps with the range of"},
			{write: updates(made(newNode, func(n *corev1.Node) { n.Spec.PodCIDRs = []string{"10.96.4.0/24"} }), newNode),
				words: "overlaps with the range of Services"}},
		"nodes spec.configSource": {{write: ofNode(func(n *corev1.Node) {
			n.Spec.ConfigSource = &corev1.NodeConfigSource{}
		}), words: "is not allowed to update configSource"}},
		"nodes spec.unschedulable": {{write: ofNode(func(n *corev1.Node) { n.Spec.Unschedulable = true })}},
		"pods": {
			{write: creates(podOn("node-a", "new")), words: "can only create mirror pods"},
			{write: deletes(podOn("node-b", "theirs")), words: "can only delete pods with spec.nodeName set to itself"}},
		"pods/status metadata": {{write: subresource(updates(made(mine, func(p *corev1.Pod) {
			p.Labels = map[string]string{"app": "payments"}
		}), mine), "status"), words: "cannot update labels through pod status"}},
		"pods/eviction": {{write: subresource(creates(&policyv1.Eviction{ObjectMeta: meta("ready")}), "eviction"),
			words: "can only evict pods with spec.nodeName set to itself"}},
		"serviceaccounts/token": {{write: subresource(creates(&authenticationv1.TokenRequest{ObjectMeta: meta("robot")}), "token"),
			words: "node requested token not bound to a pod"}},
		"leases": {{write: creates(&coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system",
			Name: "kube-scheduler"}}), words: "can only access leases in the"}},
		"csinodes": {{write: creates(&storagev1.CSINode{ObjectMeta: clusterMeta("node-b")}),
			words: "can only access CSINode with the same name"}},
		"resourceslices": {{write: creates(&resourcev1.ResourceSlice{ObjectMeta: clusterMeta("s"),
			Spec: resourcev1.ResourceSliceSpec{NodeName: new("node-b")}}), words: "can only create ResourceSlice"}},
		"certificatesigningrequests": {{write: creates(&certificatesv1.CertificateSigningRequest{
			ObjectMeta: clusterMeta("r"), Spec: certificatesv1.CertificateSigningRequestSpec{
				SignerName: certificatesv1.KubeletServingSignerName}}), words: "unable to parse csr"}},
		"podcertificaterequests": {{write: creates(&certificatesv1.PodCertificateRequest{ObjectMeta: meta("r"),
			Spec: certificatesv1.PodCertificateRequestSpec{NodeName: "node-b"}}), words: "which is not the requesting node"}},
		"persistentvolumeclaims/status": {{write: subresource(updates(made(pvc, func(c *corev1.PersistentVolumeClaim) {
			c.Status.Phase = corev1.ClaimLost
		}), pvc), "status"), words: "is not allowed to update fields other than"}},
	}
	require.Len(t, attacks, len(nodewrites.Others))
	for _, row := range nodewrites.Others {
		require.NotEmpty(t, row.ActedOnBy, row.Write)
		require.NotEmpty(t, row.Bound, row.Write)
		require.NotEmpty(t, attacks[row.Write], row.Write)
		for i := range attacks[row.Write] {
			attacks[row.Write][i].name = row.Write
		}
		w.decides(t, "NodeRestriction", "", byNode(attacks[row.Write]))
	}
}
