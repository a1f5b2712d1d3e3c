package controlplane

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/storage"
)

// Extension servers authenticate requests as this server does: they read its CAs, and the headers of front proxies,
// from a ConfigMap that every server maintains, as kube-apiserver's cluster_authentication_trust_controller does. It
// has the data of all servers that wrote it, so that servers with different CAs can share a cluster;
// certificates that have expired are left out.

const (
	trustConfigMap = "extension-apiserver-authentication" // in kube-system
	trustClientCAs = "client-ca-file"
	trustProxyCAs  = "requestheader-client-ca-file"
	// maxTrust is the largest size of the ConfigMap's data. If it would become larger, the data of other servers is
	// dropped.
	maxTrust = corev1.MaxSecretSize
	// trustExpired is how long a certificate stays after it has expired.
	trustExpired = 5 * time.Minute
)

// trusts reports whether the server has data to publish.
func (c *ControlPlane) trusts() bool {
	return c.RequestHeader != nil || c.ClientCAs != nil && len(c.ClientCAs.PEM()) > 0
}

// keepTrust maintains the ConfigMap until ctx ends: at once when it changes, and within a minute when a file of CAs
// does.
func (c *ControlPlane) keepTrust(ctx context.Context, res *api.Resource) {
	changed := make(chan struct{}, 1)
	var following sync.WaitGroup
	defer following.Wait()
	following.Go(func() {
		scope := storage.Scope{Namespace: metav1.NamespaceSystem, Name: trustConfigMap}
		c.Objects.Collection(res).Signal(ctx, scope, changed)
	})
	tick := time.NewTicker(upkeepEvery)
	defer tick.Stop()
	for {
		c.logError(ctx, "cannot publish the authentication of requests", c.publishTrust(ctx, res))
		select {
		case <-changed:
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

func (c *ControlPlane) publishTrust(ctx context.Context, res *api.Resource) error {
	fresh := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: trustConfigMap}}
	var unreadable error
	writes, err := c.put(ctx, res, fresh, func(obj api.Object) {
		published := obj.(*corev1.ConfigMap)
		data, err := c.trust(published.Data)
		if err != nil {
			unreadable = err
			return
		}
		published.Data = data
	})
	if err := errors.Join(err, unreadable); err != nil || len(writes) == 0 {
		return err
	}
	if _, err := c.Objects.Commit(ctx, writes...); err != nil && !overtaken(err) {
		return err
	}
	return nil
}

// trust returns the data that the ConfigMap should have: the data of other servers in have, and this server's.
func (c *ControlPlane) trust(have map[string]string) (map[string]string, error) {
	var clients, proxies []byte
	lists := []struct {
		key string
		own []string
	}{
		{"requestheader-username-headers", nil}, {"requestheader-uid-headers", nil},
		{"requestheader-group-headers", nil}, {"requestheader-extra-headers-prefix", nil},
		{"requestheader-allowed-names", nil},
	}
	if c.ClientCAs != nil {
		clients = c.ClientCAs.PEM()
	}
	if r := c.RequestHeader; r != nil {
		proxies = r.CAs.PEM()
		for i, own := range [][]string{r.Headers.Users, r.Headers.UIDs, r.Headers.Groups, r.Headers.ExtraPrefixes,
			r.AllowedNames} {
			lists[i].own = own
		}
	}
	data := map[string]string{}
	var errs []error
	for key, own := range map[string][]byte{trustClientCAs: clients, trustProxyCAs: proxies} {
		bundle, err := mergeBundles(c.Clock.Now().Add(-trustExpired), []byte(have[key]), own)
		if errs = append(errs, err); bundle != "" {
			data[key] = bundle
		}
	}
	for _, list := range lists {
		merged, err := mergeLists(have[list.key], list.own)
		if errs = append(errs, err); data[trustProxyCAs] != "" {
			data[list.key] = merged
		}
	}
	if size(data) > maxTrust && have != nil {
		return c.trust(nil)
	}
	return data, errors.Join(errs...)
}

// mergeBundles returns the certificates of the PEM texts, each of them once. It leaves out certificates that expired
// before a time.
func mergeBundles(ended time.Time, bundles ...[]byte) (string, error) {
	var merged []byte
	seen := map[string]bool{}
	for _, rest := range bundles {
		for block, rest := pem.Decode(rest); block != nil; block, rest = pem.Decode(rest) {
			if block.Type != "CERTIFICATE" || seen[string(block.Bytes)] {
				continue
			}
			cert, err := x509.ParseCertificate(block.Bytes)
			if err != nil {
				return "", fmt.Errorf("a published certificate: %w", err)
			}
			if seen[string(block.Bytes)] = true; cert.NotAfter.After(ended) {
				merged = append(merged, pem.EncodeToMemory(&pem.Block{Type: block.Type, Bytes: block.Bytes})...)
			}
		}
	}
	return string(merged), nil
}

// mergeLists returns a JSON list of the names in a JSON list and of own ones, each of them once.
func mergeLists(have string, own []string) (string, error) {
	var names []string
	if have != "" {
		if err := json.Unmarshal([]byte(have), &names); err != nil {
			return "", fmt.Errorf("a published list of names: %w", err)
		}
	}
	merged, seen := []string{}, map[string]bool{}
	for _, name := range slices.Concat(names, own) {
		if !seen[name] {
			seen[name], merged = true, append(merged, name)
		}
	}
	list, err := json.Marshal(merged)
	return string(list), err
}

func size(data map[string]string) (n int) {
	for _, text := range data {
		n += len(text)
	}
	return n
}
