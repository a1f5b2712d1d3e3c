package main

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

// A process may run for longer than its client certificates are good for. It takes renewed ones from its kubeconfig, or
// from the files that this names, without a restart: each request looks whether they have changed, once in lookAgain.
// Requests that are under way, watches among them, stay on the connections that they have.

// lookAgain is how long the files of a kubeconfig are taken to be unchanged.
const lookAgain = time.Second

// kubeconfig is what the files of a kubeconfig hold at present.
type kubeconfig struct {
	rules *clientcmd.ClientConfigLoadingRules
	next  atomic.Pointer[time.Time] // when to look again

	mu      sync.Mutex
	stamp   string // changes with the files
	content atomic.Pointer[clientcmdapi.Config]
}

// openKubeconfig reads a kubeconfig, or those at kubectl's usual places.
func openKubeconfig(file string) (*kubeconfig, error) {
	k := &kubeconfig{rules: clientcmd.NewDefaultClientConfigLoadingRules()}
	k.rules.ExplicitPath = file
	k.mu.Lock()
	defer k.mu.Unlock()
	return k, k.load()
}

// load is called with k.mu held.
func (k *kubeconfig) load() error {
	k.next.Store(new(time.Now().Add(lookAgain)))
	own := stampOf(k.rules.GetLoadingPrecedence()...) // before they are read: a change meanwhile is seen the next time
	if old := k.content.Load(); old != nil && own+refersTo(old) == k.stamp {
		return nil
	}
	content, err := k.rules.Load()
	if err != nil {
		return err
	}
	k.stamp = own + refersTo(content)
	k.content.Store(content)
	return nil
}

// refersTo is the stamp of the files that a kubeconfig names.
func refersTo(content *clientcmdapi.Config) string {
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

// stampOf is made of the sizes and times of files.
func stampOf(files ...string) string {
	var stamp strings.Builder
	for _, file := range files {
		if info, err := os.Stat(file); err == nil {
			fmt.Fprintln(&stamp, file, info.Size(), info.ModTime().UnixNano())
		}
	}
	return stamp.String()
}

// current is what the files hold. It is another pointer when they have changed.
func (k *kubeconfig) current() *clientcmdapi.Config {
	if time.Now().Before(*k.next.Load()) {
		return k.content.Load()
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if err := k.load(); err != nil {
		slog.Warn("cannot read the kubeconfig again", "err", err)
	}
	return k.content.Load()
}

// config is the configuration of the current context, with another user unless that is "".
func (k *kubeconfig) config(user string) (*rest.Config, error) {
	content := k.current()
	config, err := k.configOf(content, user)
	if err != nil || len(config.CertData) == 0 && config.CertFile == "" {
		return config, err
	}
	config.Wrap(func(first http.RoundTripper) http.RoundTripper {
		r := &renewing{from: k, user: user}
		r.by.Store(&connections{content, first})
		return r
	})
	return config, nil
}

func (k *kubeconfig) configOf(content *clientcmdapi.Config, user string) (*rest.Config, error) {
	if user == "" {
		// Nothing in the files is for a pod that finds its API server in its environment.
		return clientcmd.NewNonInteractiveDeferredLoadingClientConfig(k.rules, nil).ClientConfig()
	}
	if content.AuthInfos[user] == nil {
		return nil, fmt.Errorf("the kubeconfig has no user %q", user)
	}
	overrides := &clientcmd.ConfigOverrides{Context: clientcmdapi.Context{AuthInfo: user}}
	return clientcmd.NewNonInteractiveClientConfig(*content, "", overrides, nil).ClientConfig()
}

// renewing sends requests by the present credentials of a user.
type renewing struct {
	from *kubeconfig
	user string
	mu   sync.Mutex
	by   atomic.Pointer[connections]
}

// connections are made by what the kubeconfig held.
type connections struct {
	content *clientcmdapi.Config
	http.RoundTripper
}

// WrappedRoundTripper is for those who close idle connections.
func (r *renewing) WrappedRoundTripper() http.RoundTripper { return r.by.Load().RoundTripper }

func (r *renewing) RoundTrip(request *http.Request) (*http.Response, error) {
	by := r.by.Load()
	if content := r.from.current(); content != by.content {
		by = r.renew(content)
	}
	return by.RoundTrip(request)
}

// renew makes connections by the credentials of content. If there are none, the old ones are used.
func (r *renewing) renew(content *clientcmdapi.Config) *connections {
	r.mu.Lock()
	defer r.mu.Unlock()
	old := r.by.Load()
	if old.content == content {
		return old
	}
	transport := old.RoundTripper
	config, err := r.from.configOf(content, r.user)
	if err == nil {
		err = rest.LoadTLSFiles(config)
	}
	if err == nil {
		transport, err = rest.TransportFor(&rest.Config{Host: config.Host, TLSClientConfig: config.TLSClientConfig,
			BearerToken: config.BearerToken, BearerTokenFile: config.BearerTokenFile, Proxy: config.Proxy,
			DisableCompression: config.DisableCompression})
	}
	if err != nil {
		slog.Warn("cannot use the credentials of the changed kubeconfig", "user", r.user, "err", err)
		transport = old.RoundTripper
	}
	r.by.Store(&connections{content, transport})
	if transport != old.RoundTripper {
		slog.Info("the kubeconfig has changed: new connections are made by it", "user", r.user)
		utilnet.CloseIdleConnectionsFor(old.RoundTripper)
	}
	return r.by.Load()
}
