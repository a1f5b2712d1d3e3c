// Package componentstatus answers for ComponentStatuses: the health of the control plane's other parts, each asked at
// the time of the request. New returns Components, which are read like a collection, by Get and List. The server must
// not be imported.
package componentstatus

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/storage"
)

// DefaultAddresses are where kube-apiserver looks for the other components on its machine.
var DefaultAddresses = map[string]string{"controller-manager": "127.0.0.1:10257", "scheduler": "127.0.0.1:10259"}

// InProcess is the address of a component in the server's own process, which ends when the component does.
const InProcess = ""

const (
	// probeTimeout is how long a component may take to answer.
	probeTimeout = 20 * time.Second
	// maxHealth is how many bytes of its answer are shown.
	maxHealth = 1 << 10
	// etcd is its name. Where it has several members, it is asked as a whole.
	etcd = "etcd-0"
)

// names are the components, in the order of a list.
var names = []string{"controller-manager", etcd, "scheduler"}

// Options say how components are reached.
type Options struct {
	// Addresses are those of controller-manager and scheduler (host:port, or InProcess); nil is DefaultAddresses.
	Addresses map[string]string
	// Etcd returns an error if etcd does not answer.
	Etcd func(context.Context) error
	// Dial opens connections; nil is that of package net.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
}

// Components are the parts of the control plane. Its methods are safe for concurrent use.
type Components struct{ options Options }

// New returns the components at their addresses.
func New(o Options) *Components {
	if o.Addresses == nil {
		o.Addresses = DefaultAddresses
	}
	return &Components{o}
}

// Get asks one component, and returns storage.ErrNotFound for others.
func (c *Components) Get(ctx context.Context, _, name string) (api.Object, error) {
	if !slices.Contains(names, name) {
		return nil, storage.ErrNotFound
	}
	return c.status(ctx, name), nil
}

// List asks the components in the scope, all at the same time. Their revision is 0: there is none.
func (c *Components) List(ctx context.Context, scope storage.Scope) ([]api.Object, int64, error) {
	var chosen []string
	for _, name := range names {
		o := &storage.Object{Key: storage.Key{Name: name}}
		if (scope.Name == "" || scope.Name == name) && (scope.Match == nil || scope.Match(o)) {
			chosen = append(chosen, name)
		}
	}
	found := make([]api.Object, len(chosen))
	var asking sync.WaitGroup
	for i, name := range chosen {
		asking.Go(func() { found[i] = c.status(ctx, name) })
	}
	asking.Wait()
	return found, 0, nil
}

// status asks a component for its health.
func (c *Components) status(ctx context.Context, name string) *corev1.ComponentStatus {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	message := "ok"
	var err error
	switch address := c.options.Addresses[name]; {
	case name == etcd:
		err = c.options.Etcd(ctx)
	case address == InProcess:
	default:
		message, err = c.probe(ctx, address)
	}
	condition := corev1.ComponentCondition{Type: corev1.ComponentHealthy, Status: corev1.ConditionTrue,
		Message: message}
	if err != nil {
		condition.Status, condition.Error = corev1.ConditionFalse, err.Error()
	}
	return &corev1.ComponentStatus{ObjectMeta: metav1.ObjectMeta{Name: name},
		Conditions: []corev1.ComponentCondition{condition}}
}

// probe asks for the health of the component at an address: over TLS with any certificate, as Kubernetes' components
// answer, or in plain HTTP if the component speaks that, as ours do.
func (c *Components) probe(ctx context.Context, address string) (message string, err error) {
	client := &http.Client{Transport: &http.Transport{
		DialContext: c.options.Dial, DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true},
	}, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	res, err := get(ctx, client, "https://"+address+"/healthz")
	if err != nil && strings.Contains(err.Error(), "server gave HTTP response to HTTPS client") {
		res, err = get(ctx, client, "http://"+address+"/healthz")
	}
	if err != nil {
		return "", err
	}
	defer func() { _ = res.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(res.Body, maxHealth))
	if err != nil {
		return "", err
	}
	if res.StatusCode != http.StatusOK {
		return string(body), fmt.Errorf("HTTP probe failed with statuscode: %d", res.StatusCode)
	}
	return string(body), nil
}

func get(ctx context.Context, client *http.Client, url string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	return client.Do(req)
}
