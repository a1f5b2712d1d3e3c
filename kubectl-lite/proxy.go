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
	"path"
	"path/filepath"
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
	info, err := os.Lstat(o.unixSocket)
	switch {
	case err == nil && info.Mode().Type() != os.ModeSocket:
		return nil, fmt.Errorf("%s exists and is not a socket", o.unixSocket)
	case err != nil && !os.IsNotExist(err):
		return nil, err
	}
	return listenPrivately(ctx, o.unixSocket)
}

// listenPrivately listens on a Unix socket that only this user may open: whoever opens it acts as this user. The socket gets
// its mode in a folder that nobody else may enter, and its name after that; one that was left behind is replaced.
func listenPrivately(ctx context.Context, path string) (net.Listener, error) {
	folder, err := os.MkdirTemp(filepath.Dir(path), ".s")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(folder) //nolint:errcheck // an empty folder does no harm
	fresh := filepath.Join(folder, "s")
	listener, err := (&net.ListenConfig{}).Listen(ctx, "unix", fresh)
	if err != nil {
		return nil, err
	}
	if err = os.Chmod(fresh, 0o600); err == nil {
		err = os.Rename(fresh, path)
	}
	if err != nil {
		return nil, errors.Join(err, listener.Close())
	}
	return unixListener{listener, path}, nil
}

// unixListener is a listener whose socket got another name.
type unixListener struct {
	net.Listener
	path string
}

func (l unixListener) Addr() net.Addr { return &net.UnixAddr{Name: l.path, Net: "unix"} }

func (l unixListener) Close() error {
	return errors.Join(l.Listener.Close(), os.Remove(l.path))
}

// handler is files below one prefix, the API below the other. Both are for this machine alone; the rules about paths are
// for the API, and see them as the server will: without the prefix.
func (o *proxyOptions) handler(config *rest.Config) (http.Handler, error) {
	api, err := o.forward(config)
	if err != nil {
		return nil, err
	}
	rules, err := o.rules()
	if err != nil {
		return nil, err
	}
	api = rules.onlyPaths(api)
	// The API's own first segment is a prefix that stays, as with kubectl: --api-prefix=/api/ serves a part of it.
	if !strings.HasPrefix(o.apiPrefix, "/api/") && !strings.HasPrefix(o.apiPrefix, "/apis/") {
		api = http.StripPrefix(strings.TrimSuffix(o.apiPrefix, "/"), api)
	}
	mux := http.NewServeMux()
	mux.Handle(o.apiPrefix, api)
	if o.staticDir != "" {
		mux.Handle(o.staticPrefix, http.StripPrefix(o.staticPrefix, http.FileServer(http.Dir(o.staticDir))))
	}
	return rules.onlyCallers(mux), nil
}

// forward sends requests on with the credentials of the kubeconfig. Those that upgrade (exec, port-forward) need HTTP/1.1.
func (o *proxyOptions) forward(config *rest.Config) (http.Handler, error) {
	config = rest.CopyConfig(config)
	config.WrapTransport = nil // which bounds answers: none is held here
	if o.keepalive > 0 {
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

// proxyRules decide which requests pass; nil ones let all of them.
type proxyRules struct {
	acceptPaths, rejectPaths, acceptHosts, rejectMethods []*regexp.Regexp
}

func (o *proxyOptions) rules() (*proxyRules, error) {
	if o.disableFilter {
		if o.unixSocket == "" {
			fmt.Fprintln(o.ErrOut, "Request filter disabled, your proxy is vulnerable to XSRF attacks, please be cautious")
		}
		return nil, nil
	}
	rules := &proxyRules{}
	for _, list := range []struct {
		to       *[]*regexp.Regexp
		patterns string
	}{
		{&rules.acceptPaths, o.acceptPaths}, {&rules.rejectPaths, o.rejectPaths},
		{&rules.acceptHosts, o.acceptHosts}, {&rules.rejectMethods, o.rejectMethods},
	} {
		for _, pattern := range strings.Split(list.patterns, ",") {
			rule, err := regexp.Compile("(?s)" + pattern) // a line break in a path is a character like any other
			if err != nil {
				return nil, err
			}
			*list.to = append(*list.to, rule)
		}
	}
	return rules, nil
}

// onlyCallers refuses methods, and hosts by any name but this machine's: a web page in a browser here must not be able to
// reach the server through the proxy.
func (rules *proxyRules) onlyCallers(next http.Handler) http.Handler {
	return rules.allowing(next, func(r *http.Request) bool {
		host := r.Host
		if name, _, err := net.SplitHostPort(r.Host); err == nil {
			host = name
			if strings.Contains(name, ":") {
				host = "[" + name + "]"
			}
		}
		return matchesAny(rules.acceptHosts, host) && !matchesAny(rules.rejectMethods, r.Method)
	})
}

// onlyPaths refuses paths, by the path that is sent on. A path is judged as it stands and with "//", "." and ".." resolved, as
// something before the server might: both must pass.
func (rules *proxyRules) onlyPaths(next http.Handler) http.Handler {
	passes := func(p string) bool { return matchesAny(rules.acceptPaths, p) && !matchesAny(rules.rejectPaths, p) }
	return rules.allowing(next, func(r *http.Request) bool {
		return passes(r.URL.Path) && (passes(path.Clean(r.URL.Path)) || isClean(r.URL.Path))
	})
}

// isClean reports whether path.Clean changes nothing but a slash at the end.
func isClean(p string) bool { return path.Clean(p) == p || path.Clean(p)+"/" == p }

func (rules *proxyRules) allowing(next http.Handler, pass func(*http.Request) bool) http.Handler {
	if rules == nil {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !pass(r) {
			http.Error(w, http.StatusText(http.StatusForbidden), http.StatusForbidden)
			return
		}
		next.ServeHTTP(w, r)
	})
}

func matchesAny(rules []*regexp.Regexp, text string) bool {
	return slices.ContainsFunc(rules, func(rule *regexp.Regexp) bool { return rule.MatchString(text) })
}
