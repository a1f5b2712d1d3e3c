package controllers

import (
	"fmt"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
)

// accounts maps a controller to its ServiceAccount in kube-system, where the account does not have the
// controller's name: existing roles and audit logs use these names.
var accounts = map[string]string{
	"certificatesigningrequest-approving-controller":                 "certificate-controller",
	"certificatesigningrequest-cleaner-controller":                   "certificate-controller",
	"certificatesigningrequest-signing-controller":                   "certificate-controller",
	"cloud-node-controller":                                          "node-controller",
	"node-ipam-controller":                                           "node-controller",
	"service-lb-controller":                                          "service-controller",
	"daemonset-controller":                                           "daemon-set-controller",
	"endpoints-controller":                                           "endpoint-controller",
	"endpointslice-mirroring-controller":                             "endpointslicemirroring-controller",
	"garbage-collector-controller":                                   "generic-garbage-collector",
	"horizontal-pod-autoscaler-controller":                           "horizontal-pod-autoscaler",
	"legacy-serviceaccount-token-cleaner-controller":                 "legacy-service-account-token-cleaner",
	"node-lifecycle-controller":                                      "node-controller",
	"persistentvolume-attach-detach-controller":                      "attachdetach-controller",
	"persistentvolume-binder-controller":                             "persistent-volume-binder",
	"persistentvolume-expander-controller":                           "expand-controller",
	"persistentvolume-protection-controller":                         "pv-protection-controller",
	"persistentvolumeclaim-protection-controller":                    "pvc-protection-controller",
	"pod-garbage-collector-controller":                               "pod-garbage-collector",
	"podcertificaterequest-cleaner-controller":                       "podcertificaterequestcleaner",
	"kube-apiserver-serving-clustertrustbundle-publisher-controller": "kube-apiserver-serving-clustertrustbundle-publisher",
	"replicationcontroller-controller":                               "replication-controller",
	"root-ca-certificate-publisher-controller":                       "root-ca-cert-publisher",
	"service-cidr-controller":                                        "service-cidrs-controller",
	"serviceaccount-controller":                                      "service-account-controller",
	"taint-eviction-controller":                                      "node-controller",
	"token-cleaner-controller":                                       "token-cleaner",
	"bootstrap-signer-controller":                                    "bootstrap-signer",
}

// asMain is the controller without a role of its own: system:kube-controller-manager has the rights for its
// requests.
const asMain = "serviceaccount-token-controller"

// Accounts returns the controllers' ServiceAccounts in kube-system, for controllers with identities of their
// own. Some controllers share an account.
func Accounts() []string {
	var names []string
	for _, e := range table {
		if e.name != asMain {
			names = append(names, e.account())
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

func (e entry) account() string {
	if name := accounts[e.name]; name != "" {
		return name
	}
	return e.name
}

// own holds the clients of a controller, which are created, with its credentials, at the first call of typed or
// metadata. close closes their connections, if any.
type own struct {
	typed    func() kubernetes.Interface
	metadata func() metadata.Interface
	close    func()
}

// as returns the clients of a controller: its own, or the shared ones if it has no identity of its own. If its
// credentials cannot be obtained, failed is called, and all requests of its clients fail.
func (c *clients) as(e entry, identity func(account string) (*rest.Config, error), failed func(error)) own {
	if identity == nil || e.name == asMain {
		return own{func() kubernetes.Interface { return c.typed }, func() metadata.Interface { return c.metadata },
			func() {}}
	}
	var created atomic.Pointer[clients]
	get := sync.OnceValue(func() *clients {
		client, err := c.identified(e.account(), identity)
		if err != nil {
			failed(fmt.Errorf("identity of %s: %w", e.name, err))
			client, _ = clientsOf(c.config, &http.Client{Transport: refusing{err}}) // it was valid before
		}
		created.Store(client)
		return client
	})
	return own{
		typed:    func() kubernetes.Interface { return get().typed },
		metadata: func() metadata.Interface { return get().metadata },
		close: func() {
			if client := created.Load(); client != nil {
				client.close()
			}
		},
	}
}

func (c *clients) identified(account string, identity func(string) (*rest.Config, error)) (*clients, error) {
	config, err := identity(account)
	if err != nil {
		return nil, err
	}
	return connect(config)
}

// refusing is the transport of a client without credentials.
type refusing struct{ err error }

// RoundTrip implements http.RoundTripper.
func (r refusing) RoundTrip(*http.Request) (*http.Response, error) { return nil, r.err }
