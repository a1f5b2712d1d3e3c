// Package kubeconfig reads kubeconfigs for components that run longer than their client certificates are valid. A
// process picks up renewed credentials from its kubeconfig, or from the files that the kubeconfig refers to, without a
// restart. Requests in progress, including watches, stay on their connections.
package kubeconfig

import (
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// checkInterval is how long files are assumed to be unchanged. A request after that checks them again.
const checkInterval = time.Second

// Files are the files of a kubeconfig and their current content. Methods are safe for concurrent use.
type Files struct {
	rules *clientcmd.ClientConfigLoadingRules
	next  atomic.Pointer[time.Time] // when to check the files again

	mu      sync.Mutex                          // held to load
	stamp   string                              // differs when a file has changed; guarded by mu
	content atomic.Pointer[clientcmdapi.Config] // stored with mu held, loaded without
}

// Open reads a kubeconfig. With an empty name it reads kubectl's defaults: KUBECONFIG or ~/.kube/config.
func Open(file string) (*Files, error) {
	k := &Files{rules: clientcmd.NewDefaultClientConfigLoadingRules()}
	k.rules.ExplicitPath = file
	k.mu.Lock()
	defer k.mu.Unlock()
	return k, k.load()
}

// load reads the files if they have changed. The caller holds k.mu.
func (k *Files) load() error {
	k.next.Store(new(time.Now().Add(checkInterval)))
	// The stamp is taken before the files are read, so that the next check sees a change during the read.
	own := stampOf(k.rules.GetLoadingPrecedence()...)
	if old := k.content.Load(); old != nil && own+stampOfReferences(old) == k.stamp {
		return nil
	}
	content, err := k.rules.Load()
	if err != nil {
		return err
	}
	k.stamp = own + stampOfReferences(content)
	k.content.Store(content)
	return nil
}

// stampOfReferences returns the stamp of the files that a kubeconfig refers to.
func stampOfReferences(content *clientcmdapi.Config) string {
	var files []string
	for _, user := range content.AuthInfos {
		files = append(files, user.ClientCertificate, user.ClientKey)
	}
	for _, cluster := range content.Clusters {
		files = append(files, cluster.CertificateAuthority)
	}
	slices.Sort(files)
	return stampOf(slices.Compact(files)...)
}

// stampOf returns a text that differs when the size or modification time of a file has changed.
func stampOf(files ...string) string {
	var stamp strings.Builder
	for _, file := range files {
		if info, err := os.Stat(file); err == nil {
			fmt.Fprintln(&stamp, file, info.Size(), info.ModTime().UnixNano())
		}
	}
	return stamp.String()
}

// Current returns the content of the files, which callers must not modify. The pointer differs once the files have
// changed. If they cannot be read, Current returns the previous content.
func (k *Files) Current() *clientcmdapi.Config {
	if time.Now().Before(*k.next.Load()) {
		return k.content.Load()
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if err := k.load(); err != nil {
		slog.Warn("failed to reload the kubeconfig", "err", err)
	}
	return k.content.Load()
}

// Config returns the client configuration of the current context, with the given user instead of the context's unless
// it is empty. Clients with it use renewed client certificates.
func (k *Files) Config(user string) (*rest.Config, error) {
	content := k.Current()
	config, err := k.clientConfig(content, user)
	if err != nil || len(config.CertData) == 0 && config.CertFile == "" {
		return config, err
	}
	config.Wrap(func(first http.RoundTripper) http.RoundTripper {
		r := &renewingTransport{files: k, user: user}
		r.current.Store(&transport{content, first})
		return r
	})
	return config, nil
}

func (k *Files) clientConfig(content *clientcmdapi.Config, user string) (*rest.Config, error) {
	if user == "" {
		// In a pod without a kubeconfig, this finds the API server in the environment.
		return clientcmd.NewNonInteractiveDeferredLoadingClientConfig(k.rules, nil).ClientConfig()
	}
	if content.AuthInfos[user] == nil {
		return nil, fmt.Errorf("the kubeconfig has no user %q", user)
	}
	overrides := &clientcmd.ConfigOverrides{Context: clientcmdapi.Context{AuthInfo: user}}
	return clientcmd.NewNonInteractiveClientConfig(*content, "", overrides, nil).ClientConfig()
}

// renewingTransport sends requests with the user's current credentials.
type renewingTransport struct {
	files   *Files
	user    string
	mu      sync.Mutex // held to replace current
	current atomic.Pointer[transport]
}

// transport has the connections that use the credentials of one content of the kubeconfig.
type transport struct {
	content *clientcmdapi.Config
	http.RoundTripper
}

// WrappedRoundTripper implements net.RoundTripperWrapper: client-go closes idle connections through it.
func (r *renewingTransport) WrappedRoundTripper() http.RoundTripper {
	return r.current.Load().RoundTripper
}

func (r *renewingTransport) RoundTrip(request *http.Request) (*http.Response, error) {
	current := r.current.Load()
	if content := r.files.Current(); content != current.content {
		current = r.renew(content)
	}
	return current.RoundTrip(request)
}

// renew replaces the transport by one with the credentials of content. If these cannot be used, it keeps the previous
// transport until the content changes again.
func (r *renewingTransport) renew(content *clientcmdapi.Config) *transport {
	r.mu.Lock()
	defer r.mu.Unlock()
	old := r.current.Load()
	if old.content == content {
		return old
	}
	next := old.RoundTripper
	config, err := r.files.clientConfig(content, r.user)
	if err == nil {
		err = rest.LoadTLSFiles(config)
	}
	if err == nil {
		next, err = rest.TransportFor(&rest.Config{Host: config.Host, TLSClientConfig: config.TLSClientConfig,
			BearerToken: config.BearerToken, BearerTokenFile: config.BearerTokenFile, Proxy: config.Proxy,
			DisableCompression: config.DisableCompression})
	}
	if err != nil {
		slog.Warn("cannot use the credentials of the changed kubeconfig", "user", r.user, "err", err)
		next = old.RoundTripper
	}
	r.current.Store(&transport{content, next})
	if next != old.RoundTripper {
		slog.Info("kubeconfig changed: new connections use its credentials", "user", r.user)
		utilnet.CloseIdleConnectionsFor(old.RoundTripper)
	}
	return r.current.Load()
}
