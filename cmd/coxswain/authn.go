package main

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/coxswain-dev/coxswain/apiserver"
	"github.com/coxswain-dev/coxswain/apiserver/authn"
	"github.com/coxswain-dev/coxswain/cmd/coxswain/certs"
)

// authnFlags select the credentials that the API server accepts.
type authnFlags struct {
	clientCAFile     string
	tokenFile        string
	bootstrapTokens  bool
	anonymous        bool
	configFile       string
	issuers          []string
	signingKeyFile   string
	keyFiles         []string
	audiences        []string
	jwksURI          string
	maxExpiration    time.Duration
	extendExpiration bool
	oidc             authn.OIDCOptions
	webhook          authn.WebhookOptions
	frontProxy       frontProxyFlags
	set              *pflag.FlagSet // records which flags are set
}

func (f *authnFlags) add(fs *pflag.FlagSet) {
	f.set = fs
	fs.StringVar(&f.clientCAFile, "client-ca-file", "",
		"CAs whose client certificates are accepted besides our own CA's")
	fs.StringVar(&f.tokenFile, "token-auth-file", "", "CSV file of tokens: token,user,uid,\"group1,group2\"")
	fs.BoolVar(&f.bootstrapTokens, "enable-bootstrap-token-auth", false,
		"accept the tokens in secrets of type bootstrap.kubernetes.io/token in kube-system")
	fs.BoolVar(&f.anonymous, "anonymous-auth", true, "accept requests without credentials as requests of "+
		"system:anonymous; otherwise respond with 401. Always off with --authorization-mode=AlwaysAllow")
	fs.StringVar(&f.configFile, "authentication-config", "", "AuthenticationConfiguration: issuers of JSON web "+
		"tokens, and paths that need no credentials; reloaded when it changes. Excludes --oidc-* and, if it "+
		"configures anonymous requests, --anonymous-auth")
	fs.StringSliceVar(&f.issuers, "service-account-issuer", nil,
		"issuers of service account tokens; the first signs, all are accepted (default "+authn.DefaultIssuer+")")
	fs.StringVar(&f.signingKeyFile, "service-account-signing-key-file", "",
		"private key that signs service account tokens (default one of our own, pki/sa.key in --data-dir)")
	fs.StringSliceVar(&f.keyFiles, "service-account-key-file", nil,
		"further keys, public or private, whose service account tokens are accepted")
	fs.StringSliceVar(&f.audiences, "api-audiences", nil,
		"names of the API server, one of which a token must have as audience (default --service-account-issuer)")
	fs.StringVar(&f.jwksURI, "service-account-jwks-uri", "",
		"address of the public keys of service account tokens for other parties (default below the issuer)")
	fs.DurationVar(&f.maxExpiration, "service-account-max-token-expiration", 0,
		"longest validity of a service account token, at least one hour; 0 is no limit")
	fs.BoolVar(&f.extendExpiration, "service-account-extend-token-expiration", true,
		"sign the tokens of pods for a year, for clients that do not reread them")
	fs.StringVar(&f.oidc.IssuerURL, "oidc-issuer-url", "", "OpenID provider whose ID tokens are accepted, an https URL")
	fs.StringVar(&f.oidc.ClientID, "oidc-client-id", "",
		"audience of the provider's tokens; required with --oidc-issuer-url")
	fs.StringVar(&f.oidc.UsernameClaim, "oidc-username-claim", "sub", "claim that is the user's name")
	fs.StringVar(&f.oidc.UsernamePrefix, "oidc-username-prefix", "",
		"prefix of user names; \"-\" for none (default the issuer and #, and none for the claim email)")
	fs.StringVar(&f.oidc.GroupsClaim, "oidc-groups-claim", "", "claim that holds the user's groups")
	fs.StringVar(&f.oidc.GroupsPrefix, "oidc-groups-prefix", "", "prefix of groups")
	fs.StringToStringVar(&f.oidc.RequiredClaims, "oidc-required-claim", nil,
		"claim and value that the provider's tokens must have")
	fs.StringVar(&f.oidc.CAFile, "oidc-ca-file", "", "CAs of the provider's certificate (default the system's)")
	fs.StringSliceVar(&f.oidc.SigningAlgs, "oidc-signing-algs", []string{"RS256"},
		"algorithms of the provider's signatures; asymmetric ones only")
	fs.StringVar(&f.webhook.ConfigFile, "authentication-token-webhook-config-file", "",
		"kubeconfig of a webhook that authenticates tokens that no other authenticator accepts")
	fs.StringVar(&f.webhook.Version, "authentication-token-webhook-version", "v1beta1",
		"version of TokenReview to send: v1beta1 or v1")
	fs.DurationVar(&f.webhook.CacheTTL, "authentication-token-webhook-cache-ttl", 2*time.Minute,
		"how long the webhook's responses are cached")
	f.frontProxy.add(fs)
}

// options converts the flags to options. Keys that the flags do not name are own's. modes has the authorization modes.
func (f *authnFlags) options(own *certs.Authorities, modes []string) (authn.Options, error) {
	o := authn.Options{TokenFile: f.tokenFile, BootstrapTokens: f.bootstrapTokens}
	if err := f.configOptions(&o, modes); err != nil {
		return o, err
	}
	if f.webhook.ConfigFile != "" {
		o.Webhook = &f.webhook
	}
	var files []string
	if f.clientCAFile != "" {
		files = []string{f.clientCAFile}
	}
	var err error
	if o.ClientCAs, err = authn.OpenCAs(slog.Default(), own.Cluster.PEM(), files...); err != nil {
		return o, fmt.Errorf("--client-ca-file: %w", err)
	}
	if o.RequestHeader, err = f.frontProxy.trusted(own, o.ClientCAs); err != nil {
		return o, err
	}
	o.ServiceAccounts, err = f.issuer(own)
	return o, err
}

// configOptions sets the issuers of tokens and the rules for requests without credentials, from the file or from flags.
func (f *authnFlags) configOptions(o *authn.Options, modes []string) error {
	o.NoAnonymous = !f.anonymous
	if f.anonymous && slices.Contains(modes, "AlwaysAllow") {
		slog.Warn("requests without credentials are rejected, because --authorization-mode=AlwaysAllow would " +
			"allow them everything")
		o.NoAnonymous = true
	}
	var oidc bool
	f.set.VisitAll(func(flag *pflag.Flag) { oidc = oidc || flag.Changed && strings.HasPrefix(flag.Name, "oidc-") })
	switch {
	case f.configFile == "" && !oidc:
		return nil
	case f.configFile == "":
		config, err := f.oidc.Config()
		o.Config = &config
		return err
	case oidc:
		return errors.New("authentication-config file and oidc-* flags are mutually exclusive")
	}
	config, content, err := authn.ReadConfig(f.configFile)
	if err != nil {
		return fmt.Errorf("--authentication-config: %w", err)
	}
	o.Config = &authn.ConfigOptions{Configuration: config, File: f.configFile, Content: content}
	anonymous := config.Anonymous
	switch {
	case anonymous == nil:
		return nil
	case f.set.Changed("anonymous-auth"):
		return errors.New("anonymous: Forbidden: --anonymous-auth flag cannot be set when anonymous field is " +
			"configured in authentication configuration file")
	}
	o.NoAnonymous, o.AnonymousPaths = !anonymous.Enabled, anonymous.Paths()
	return nil
}

func (f *authnFlags) issuer(own *certs.Authorities) (*authn.Issuer, error) {
	o := authn.IssuerOptions{
		Issuers: f.issuers, Audiences: f.audiences, JWKSURI: f.jwksURI,
		MaxExpiration: f.maxExpiration, KeepExpiration: !f.extendExpiration,
	}
	if f.maxExpiration != 0 && (f.maxExpiration < time.Hour || f.maxExpiration > 1<<32*time.Second) {
		return nil, fmt.Errorf("--service-account-max-token-expiration: %s is not between an hour and 2^32 seconds",
			f.maxExpiration)
	}
	if err := o.ReadKeys(f.signingKeyFile, f.keyFiles); err != nil {
		return nil, err
	}
	if o.SigningKey == nil {
		var err error
		if o.SigningKey, err = own.Tokens(); err != nil {
			return nil, err
		}
	}
	return authn.NewIssuer(o)
}

// limitFlags limit clients' use of the API server. On the command line, 0 is no limit, as in kube-apiserver.
type limitFlags struct {
	requests, mutating, connections, streams, watches int
	fairness                                          bool
	memory                                            resource.QuantityValue
}

func (f *limitFlags) add(fs *pflag.FlagSet) {
	fs.IntVar(&f.requests, "max-requests-inflight", 400, "with --max-mutating-requests-inflight, the seats that "+
		"priority levels share; without priority levels, how many reading requests run at once, 0 for no limit")
	fs.IntVar(&f.mutating, "max-mutating-requests-inflight", 200, "with --max-requests-inflight, the seats that "+
		"priority levels share; without priority levels, how many mutating requests run at once, 0 for no limit")
	fs.BoolVar(&f.fairness, "enable-priority-and-fairness", true, "run, queue or reject (429) requests according to "+
		"FlowSchemas and PriorityLevelConfigurations; otherwise, only the two limits apply")
	fs.IntVar(&f.connections, "max-connections-per-client", 4096,
		"how many connections one IPv4 address or IPv6 /64 network may have; 0 is no limit")
	fs.IntVar(&f.streams, "http2-max-streams-per-connection", 100,
		"how many requests one HTTP/2 connection may have in progress; 0 is the default")
	fs.Var(&f.memory, "max-request-memory", "how much memory all requests together may use besides the stored "+
		"objects, such as 64Mi, at least 28Mi; requests beyond it wait or are rejected (429). By default, or with 0, "+
		"half of the memory limit (GOMEMLIMIT or the cgroup's) that is not in use, and no limit without one")
	fs.IntVar(&f.watches, "max-watches-per-user", 10_000, "how many watches one user may have; 0 is no limit")
}

func (f *limitFlags) limits() apiserver.Limits {
	unbounded := func(n int) int {
		if n == 0 {
			return -1
		}
		return n
	}
	return apiserver.Limits{
		RequestsInFlight: unbounded(f.requests), MutatingRequestsInFlight: unbounded(f.mutating),
		NoPriorityAndFairness: !f.fairness,
		ConnectionsPerClient:  unbounded(f.connections), WatchesPerUser: unbounded(f.watches),
		StreamsPerConnection: max(f.streams, 0),
		RequestMemory:        f.memory.Value(),
	}
}
