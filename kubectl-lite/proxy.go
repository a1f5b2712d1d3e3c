package kubectllite

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httputil"
	"os"
	"os/signal"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/rest"
)

type proxyOptions struct {
	*session
	staticDir, staticPrefix, apiPrefix    string
	acceptPaths, rejectPaths, acceptHosts string
	rejectMethods                         string
	port                                  int
	address, unixSocket                   string
	disableFilter, appendPath             bool
	keepalive                             time.Duration
}

func newProxy(s *session) *cobra.Command {
	o := &proxyOptions{session: s}
	cmd := &cobra.Command{
		Use:   "proxy [--port=PORT] [--www=static-dir] [--www-prefix=prefix] [--api-prefix=prefix]",
		Short: "Run a proxy to the Kubernetes API server",
		Long: `Lets programs on this machine reach the API server without credentials of their own: those of the kubeconfig are added to
what passes.`,
		Example: `  kubectl-lite proxy --port=8001
  curl http://127.0.0.1:8001/api/v1/namespaces`,
		DisableFlagsInUseLine: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, cancel := signal.NotifyContext(contextOf(cmd), os.Interrupt)
			defer cancel()
			return o.run(ctx)
		},
	}
	flags := cmd.Flags()
	flags.StringVarP(&o.staticDir, "www", "w", "", "Also serve static files from the given directory under the specified prefix.")
	flags.StringVarP(&o.staticPrefix, "www-prefix", "P", "/static/", "Prefix to serve static files under, if static file directory is specified.")
	flags.StringVar(&o.apiPrefix, "api-prefix", "/", "Prefix to serve the proxied API under.")
	flags.StringVar(&o.acceptPaths, "accept-paths", "^.*", "Regular expression for paths that the proxy should accept.")
	flags.StringVar(&o.rejectPaths, "reject-paths", "^/api/.*/pods/.*/exec,^/api/.*/pods/.*/attach", "Regular expression for paths that the proxy should reject. Paths specified here will be rejected even accepted by --accept-paths.")
	flags.StringVar(&o.acceptHosts, "accept-hosts", `^localhost$,^127\.0\.0\.1$,^\[::1\]$`, "Regular expression for hosts that the proxy should accept.")
	flags.StringVar(&o.rejectMethods, "reject-methods", "^$", "Regular expression for HTTP methods that the proxy should reject (example --reject-methods='POST,PUT,PATCH').")
	flags.IntVarP(&o.port, "port", "p", 8001, "The port on which to run the proxy. Set to 0 to pick a random port.")
	flags.StringVar(&o.address, "address", "127.0.0.1", "The IP address on which to serve on.")
	flags.BoolVar(&o.disableFilter, "disable-filter", false, "If true, disable request filtering in the proxy. This is dangerous, and can leave you vulnerable to XSRF attacks, when used with an accessible port.")
	flags.StringVarP(&o.unixSocket, "unix-socket", "u", "", "Unix socket on which to run the proxy.")
	flags.DurationVar(&o.keepalive, "keepalive", 0, "keepalive specifies the keep-alive period for an active network connection. Set to 0 to disable keepalive.")
	flags.BoolVar(&o.appendPath, "append-server-path", false, "If true, enables automatic path appending of the kube context server path to each request.")
	return cmd
}

func (o *proxyOptions) run(ctx context.Context) error {
	config, err := o.ToRESTConfig()
	if err != nil {
		return err
	}
	if o.port != 8001 && o.unixSocket != "" {
		return fmt.Errorf("cannot set --unix-socket and --port at the same time")
	}
	for _, prefix := range []*string{&o.apiPrefix, &o.staticPrefix} {
		if !strings.HasSuffix(*prefix, "/") {
			*prefix += "/"
		}
	}
	if o.staticDir != "" {
		info, err := os.Stat(o.staticDir)
		if err != nil {
			fmt.Fprintf(o.ErrOut, "Failed to stat static file directory %s: %v\n", o.staticDir, err)
		} else if !info.IsDir() {
			fmt.Fprintf(o.ErrOut, "Static file directory %s is not a directory\n", o.staticDir)
		}
	}
	handler, err := o.handler(config)
	if err != nil {
		return err
	}
	listener, err := o.listen(ctx)
	if err != nil {
		return err
	}
	fmt.Fprintf(o.Out, "Starting to serve on %s\n", listener.Addr())
	server := &http.Server{Handler: handler, ReadHeaderTimeout: 30 * time.Second}
	defer context.AfterFunc(ctx, func() { server.Close() })() //nolint:errcheck // the process ends
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

func (o *proxyOptions) listen(ctx context.Context) (net.Listener, error) {
	config := net.ListenConfig{}
	if o.unixSocket == "" {
		return config.Listen(ctx, "tcp", net.JoinHostPort(o.address, strconv.Itoa(o.port)))
	}
	if err := os.Remove(o.unixSocket); err != nil && !os.IsNotExist(err) {
		return nil, err
	}
	listener, err := config.Listen(ctx, "unix", o.unixSocket)
	if err != nil {
		return nil, err
	}
	return listener, os.Chmod(o.unixSocket, 0o600) // whoever may open it acts as this user
}

// handler is files below one prefix, the API below the other, and the filter before both.
func (o *proxyOptions) handler(config *rest.Config) (http.Handler, error) {
	api, err := o.forward(config)
	if err != nil {
		return nil, err
	}
	mux := http.NewServeMux()
	mux.Handle(o.apiPrefix, http.StripPrefix(strings.TrimSuffix(o.apiPrefix, "/"), api))
	if o.staticDir != "" {
		mux.Handle(o.staticPrefix, http.StripPrefix(o.staticPrefix, http.FileServer(http.Dir(o.staticDir))))
	}
	return o.filtered(mux)
}

// forward sends requests on with the credentials of the kubeconfig. Those that upgrade (exec, port-forward) need HTTP/1.1.
func (o *proxyOptions) forward(config *rest.Config) (http.Handler, error) {
	if o.keepalive > 0 {
		config = rest.CopyConfig(config)
		config.Dial = (&net.Dialer{Timeout: 30 * time.Second, KeepAlive: o.keepalive}).DialContext
	}
	target, _, err := rest.DefaultServerUrlFor(config)
	if err != nil {
		return nil, err
	}
	plain, err := rest.TransportFor(config)
	if err != nil {
		return nil, err
	}
	old := rest.CopyConfig(config)
	old.NextProtos = []string{"http/1.1"}
	upgrading, err := rest.TransportFor(old)
	if err != nil {
		return nil, err
	}
	if !o.appendPath {
		if target.Path != "" && target.Path != "/" {
			fmt.Fprintf(o.ErrOut, "Your kube context contains a server path %s, use --append-server-path to automatically append the path to each request\n", target.Path)
		}
		target.Path = ""
	}
	return &httputil.ReverseProxy{
		FlushInterval: -1, // watches
		Transport: transportFunc(func(r *http.Request) (*http.Response, error) {
			if r.Header.Get("Upgrade") != "" {
				return upgrading.RoundTrip(r)
			}
			return plain.RoundTrip(r)
		}),
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(target)
			r.Out.Host = target.Host
			r.Out.Header.Del("Origin") // the browser's, which the server would refuse
		},
	}, nil
}

type transportFunc func(*http.Request) (*http.Response, error)

func (f transportFunc) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// filtered decides which requests pass. A web page in a browser on this machine must not be able to reach the server through
// the proxy, which is why only names of this machine are accepted as the host.
func (o *proxyOptions) filtered(next http.Handler) (http.Handler, error) {
	if o.disableFilter {
		if o.unixSocket == "" {
			fmt.Fprintln(o.ErrOut, "Request filter disabled, your proxy is vulnerable to XSRF attacks, please be cautious")
		}
		return next, nil
	}
	var rules [4][]*regexp.Regexp
	for i, patterns := range []string{o.acceptPaths, o.rejectPaths, o.acceptHosts, o.rejectMethods} {
		for _, pattern := range strings.Split(patterns, ",") {
			rule, err := regexp.Compile(pattern)
			if err != nil {
				return nil, err
			}
			rules[i] = append(rules[i], rule)
		}
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host := r.Host
		if name, _, err := net.SplitHostPort(r.Host); err == nil {
			host = name
			if strings.Contains(name, ":") {
				host = "[" + name + "]"
			}
		}
		if matchesAny(rules[0], r.URL.Path) && !matchesAny(rules[1], r.URL.Path) && matchesAny(rules[2], host) && !matchesAny(rules[3], r.Method) {
			next.ServeHTTP(w, r)
			return
		}
		http.Error(w, http.StatusText(http.StatusForbidden), http.StatusForbidden)
	}), nil
}

func matchesAny(rules []*regexp.Regexp, text string) bool {
	return slices.ContainsFunc(rules, func(rule *regexp.Regexp) bool { return rule.MatchString(text) })
}
