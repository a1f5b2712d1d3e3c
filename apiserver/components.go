package apiserver

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/storage"
)

// DefaultComponents are where kube-apiserver looks for the others of its machine.
var DefaultComponents = map[string]string{"controller-manager": "127.0.0.1:10257", "scheduler": "127.0.0.1:10259"}

// InProcess is the address of a component that runs in the server's own process, which ends with it.
const InProcess = ""

const (
	// probeTimeout is how long a component may take to say that it is well.
	probeTimeout = 20 * time.Second
	// maxHealth is how many bytes of what it says are told.
	maxHealth = 1 << 10
	// etcdComponent is the name of etcd. Where it has several members, it is asked as a whole.
	etcdComponent = "etcd-0"
)

// componentStatus answers a GET or LIST of ComponentStatuses: every component that the request selects is asked now.
func (s *Server) componentStatus(w http.ResponseWriter, r *request) error {
	names := []string{"controller-manager", etcdComponent, "scheduler"}
	if r.verb == "get" {
		for _, name := range names {
			if name == r.name {
				o, err := s.probed(r.Context(), r.res, name)
				if err != nil {
					return err
				}
				return s.writeObject(w, r, http.StatusOK, o)
			}
		}
		return apierrors.NewNotFound(r.res.GroupResource(), r.name)
	}
	scope, err := r.scope()
	if err != nil {
		return err
	}
	found := make([]*storage.Object, len(names))
	errs := make([]error, len(names))
	var asking sync.WaitGroup
	for i, name := range names {
		if scope.Name == "" || scope.Name == name {
			asking.Go(func() { found[i], errs[i] = s.probed(r.Context(), r.res, name) })
		}
	}
	asking.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	result := &storage.List{}
	for _, o := range found {
		if o != nil && (scope.Match == nil || scope.Match(o)) {
			result.Items = append(result.Items, o)
		}
	}
	return s.writeList(w, r, result)
}

// probed is what is known of a component.
func (s *Server) probed(ctx context.Context, res *api.Resource, name string) (*storage.Object, error) {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	var message string
	var err error
	switch address := s.Components[name]; {
	case name == etcdComponent:
		message = "ok"
		_, err = s.Store.Revision(ctx)
	case address == InProcess:
		message = "ok"
	default:
		message, err = s.probe(ctx, address)
	}
	condition := corev1.ComponentCondition{Type: corev1.ComponentHealthy, Status: corev1.ConditionTrue, Message: message}
	if err != nil {
		condition.Status, condition.Error = corev1.ConditionFalse, err.Error()
	}
	doc, err := encode(res, &corev1.ComponentStatus{ObjectMeta: metav1.ObjectMeta{Name: name}, Conditions: []corev1.ComponentCondition{condition}})
	return &storage.Object{Key: storage.Key{Name: name}, JSON: doc}, err
}

// probe asks an address whether it is well: over TLS with whatever certificate, as Kubernetes' programs answer, and
// without where that is what the other speaks, as ours do.
func (s *Server) probe(ctx context.Context, address string) (message string, err error) {
	client := &http.Client{Transport: &http.Transport{
		DialContext: s.Kubelet.Dial, DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true},
	}, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	res, err := ask(ctx, client, "https://"+address+"/healthz")
	if err != nil && strings.Contains(err.Error(), "server gave HTTP response to HTTPS client") {
		res, err = ask(ctx, client, "http://"+address+"/healthz")
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

func ask(ctx context.Context, client *http.Client, url string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	return client.Do(req)
}
