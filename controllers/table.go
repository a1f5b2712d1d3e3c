package controllers

import (
	"fmt"
	"slices"

	"github.com/coxswain-dev/coxswain/controllers/attachdetach"
	"github.com/coxswain-dev/coxswain/controllers/bootstrapsigner"
	"github.com/coxswain-dev/coxswain/controllers/cloudnode"
	"github.com/coxswain-dev/coxswain/controllers/clusterdns"
	"github.com/coxswain-dev/coxswain/controllers/clusterroleaggregation"
	"github.com/coxswain-dev/coxswain/controllers/cronjob"
	"github.com/coxswain-dev/coxswain/controllers/csrapproving"
	"github.com/coxswain-dev/coxswain/controllers/csrcleaner"
	"github.com/coxswain-dev/coxswain/controllers/csrsigning"
	"github.com/coxswain-dev/coxswain/controllers/daemonset"
	"github.com/coxswain-dev/coxswain/controllers/deployment"
	"github.com/coxswain-dev/coxswain/controllers/disruption"
	"github.com/coxswain-dev/coxswain/controllers/endpoints"
	"github.com/coxswain-dev/coxswain/controllers/endpointslice"
	"github.com/coxswain-dev/coxswain/controllers/endpointslicemirroring"
	"github.com/coxswain-dev/coxswain/controllers/ephemeralvolume"
	"github.com/coxswain-dev/coxswain/controllers/garbagecollector"
	"github.com/coxswain-dev/coxswain/controllers/job"
	"github.com/coxswain-dev/coxswain/controllers/leasegc"
	"github.com/coxswain-dev/coxswain/controllers/legacytokencleaner"
	"github.com/coxswain-dev/coxswain/controllers/lib/controller"
	"github.com/coxswain-dev/coxswain/controllers/namespace"
	"github.com/coxswain-dev/coxswain/controllers/nodeipam"
	"github.com/coxswain-dev/coxswain/controllers/nodelifecycle"
	"github.com/coxswain-dev/coxswain/controllers/nodelocal"
	"github.com/coxswain-dev/coxswain/controllers/nodettl"
	"github.com/coxswain-dev/coxswain/controllers/podautoscaler"
	"github.com/coxswain-dev/coxswain/controllers/podcertificatecleaner"
	"github.com/coxswain-dev/coxswain/controllers/podgc"
	"github.com/coxswain-dev/coxswain/controllers/pvbinder"
	"github.com/coxswain-dev/coxswain/controllers/pvcprotection"
	"github.com/coxswain-dev/coxswain/controllers/pvexpander"
	"github.com/coxswain-dev/coxswain/controllers/pvprotection"
	"github.com/coxswain-dev/coxswain/controllers/replicaset"
	"github.com/coxswain-dev/coxswain/controllers/replicationcontroller"
	"github.com/coxswain-dev/coxswain/controllers/resourcequota"
	"github.com/coxswain-dev/coxswain/controllers/rootca"
	"github.com/coxswain-dev/coxswain/controllers/serviceaccount"
	"github.com/coxswain-dev/coxswain/controllers/serviceaccounttoken"
	"github.com/coxswain-dev/coxswain/controllers/servicecidr"
	"github.com/coxswain-dev/coxswain/controllers/servicelb"
	"github.com/coxswain-dev/coxswain/controllers/statefulset"
	"github.com/coxswain-dev/coxswain/controllers/storagemigration"
	"github.com/coxswain-dev/coxswain/controllers/tainteviction"
	"github.com/coxswain-dev/coxswain/controllers/tokencleaner"
	"github.com/coxswain-dev/coxswain/controllers/trustbundle"
	"github.com/coxswain-dev/coxswain/controllers/ttlafterfinished"
)

// table lists all controllers: the name and the older, shorter one (--controllers accepts both, as in
// kube-controller-manager), the constructor, and the number of workers.
var table = []entry{
	{"deployment-controller", "deployment", deployment.New, 5},
	{"replicaset-controller", "replicaset", replicaset.New, 5},
	{"replicationcontroller-controller", "replicationcontroller", replicationcontroller.New, 5},
	{"statefulset-controller", "statefulset", statefulset.New, 5},
	{"daemonset-controller", "daemonset", daemonset.New, 2},
	{"job-controller", "job", job.New, 5},
	{"horizontal-pod-autoscaler-controller", "horizontalpodautoscaling", podautoscaler.New, 5},
	{"disruption-controller", "disruption", disruption.New, 5},
	{"pod-garbage-collector-controller", "podgc", podgc.New, 1},
	{"ttl-after-finished-controller", "ttl-after-finished", ttlafterfinished.New, 5},
	{"cronjob-controller", "cronjob", cronjob.New, 5},
	{"node-lifecycle-controller", "nodelifecycle", nodelifecycle.New, 8},
	{"taint-eviction-controller", "taint-eviction", tainteviction.New, 8},
	{"namespace-controller", "namespace", namespace.New, 10},
	{"garbage-collector-controller", "garbagecollector", garbagecollector.New, 20},
	{"serviceaccount-controller", "serviceaccount", serviceaccount.New, 5},
	{"endpointslice-controller", "endpointslice", endpointslice.New, 5},
	{"endpointslice-mirroring-controller", "endpointslicemirroring", endpointslicemirroring.New, 5},
	{"endpoints-controller", "endpoint", endpoints.New, 5},
	{"resourcequota-controller", "resourcequota", resourcequota.New, 5},
	{"persistentvolumeclaim-protection-controller", "pvc-protection", pvcprotection.New, 5},
	{"persistentvolume-protection-controller", "pv-protection", pvprotection.New, 1},
	{"persistentvolume-binder-controller", "persistentvolume-binder", pvbinder.New, 1},
	{"persistentvolume-attach-detach-controller", "persistentvolume-attach-detach", attachdetach.New, 1},
	{"persistentvolume-expander-controller", "persistentvolume-expander", pvexpander.New, 1},
	{"ephemeral-volume-controller", "ephemeral-volume", ephemeralvolume.New, 1},
	{"node-local-provisioner", "node-local", nodelocal.New, 1},
	{"service-lb-controller", "service", servicelb.New, 1},
	{"node-ipam-controller", "nodeipam", nodeipam.New, 1},
	{"ttl-controller", "ttl", nodettl.New, 1},
	{"cloud-node-controller", "cloud-node", cloudnode.New, 1},
	{"lease-housekeeping-controller", "lease-housekeeping", leasegc.New, 1},
	{"cluster-dns-controller", "cluster-dns", clusterdns.New, 1},
	{"root-ca-certificate-publisher-controller", "root-ca-cert-publisher", rootca.New, 1},
	{"service-cidr-controller", "service-cidr", servicecidr.New, 5},
	{"clusterrole-aggregation-controller", "clusterrole-aggregation", clusterroleaggregation.New, 5},
	{"serviceaccount-token-controller", "serviceaccount-token", serviceaccounttoken.New, 5},
	{"legacy-serviceaccount-token-cleaner-controller", "legacy-service-account-token-cleaner", legacytokencleaner.New,
		1},
	{"certificatesigningrequest-approving-controller", "csrapproving", csrapproving.New, 5},
	{"certificatesigningrequest-signing-controller", "csrsigning", csrsigning.New, 5},
	{"certificatesigningrequest-cleaner-controller", "csrcleaner", csrcleaner.New, 1},
	{"podcertificaterequest-cleaner-controller", "podcertificaterequest-cleaner-controller", podcertificatecleaner.New,
		1},
	{"kube-apiserver-serving-clustertrustbundle-publisher-controller",
		"kube-apiserver-serving-clustertrustbundle-publisher-controller", trustbundle.New, 1},
	{"storage-version-migrator-controller", "storage-version-migrator-controller", storagemigration.New, 1},
	{"bootstrap-signer-controller", "bootstrapsigner", bootstrapsigner.New, 1},
	{"token-cleaner-controller", "tokencleaner", tokencleaner.New, 1},
}

type entry struct {
	name, alias string
	construct   func(*controller.Env) (*controller.Controller, error)
	workers     int
}

// Names returns the names of all controllers.
func Names() []string {
	names := make([]string, len(table))
	for i, e := range table {
		names[i] = e.name
	}
	return names
}

// Enabled reports whether a list in the syntax of --controllers selects a controller. An empty list selects
// none.
func Enabled(selection []string, name string) bool {
	return slices.ContainsFunc(table, func(e entry) bool { return e.is(name) && e.enabled(selection) })
}

// selectControllers returns the controllers selected by the syntax of --controllers: "*" is all, "foo" is one,
// "-foo" excludes one. The first entry that names a controller decides.
func selectControllers(selection []string) ([]entry, error) {
	for _, name := range selection {
		if name != "*" && !slices.ContainsFunc(table, func(e entry) bool { return e.is(name) || e.isNot(name) }) {
			return nil, fmt.Errorf("%q is not in the list of known controllers %v", name, Names())
		}
	}
	return slices.DeleteFunc(slices.Clone(table), func(e entry) bool { return !e.enabled(selection) }), nil
}

func (e entry) is(name string) bool    { return name == e.name || name == e.alias }
func (e entry) isNot(name string) bool { return name == "-"+e.name || name == "-"+e.alias }

func (e entry) enabled(selection []string) bool {
	for _, name := range selection {
		switch {
		case e.is(name):
			return true
		case e.isNot(name):
			return false
		}
	}
	return slices.Contains(selection, "*")
}
