package authn

import (
	"context"
	"fmt"
	"log/slog"
	"reflect"
	"time"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/coxswain-dev/coxswain/apiserver/configfile"
)

// ConfigOptions are what an AuthenticationConfiguration configures.
type ConfigOptions struct {
	// Configuration is in force first; nil has no issuers. Whether there is an anonymous user is for Options to say.
	Configuration *Configuration
	// File, when not "", is the file of the configuration, with this Content. It is read again when it changes.
	File    string
	Content []byte
	// SigningAlgs are the algorithms with which issuers may sign; nil are all asymmetric ones of RFC 7518.
	SigningAlgs []string
}

// readyTimeout is how long the issuers that a changed file adds may take to answer.
const readyTimeout = 10 * time.Second

// jwtConfig keeps the issuers of a configuration in force.
type jwtConfig struct {
	jwtTokens
	anonymous *AnonymousConfig
	ours      []string // issuers that no configuration may have
	first     []*jwtIssuer
	file      *configfile.Follower // nil: the configuration does not change
}

// newJWTConfig checks the first configuration.
func newJWTConfig(o ConfigOptions, ours []string, log *slog.Logger) (*jwtConfig, error) {
	c := &jwtConfig{ours: ours, jwtTokens: jwtTokens{algs: o.SigningAlgs, metrics: newJWTMetrics(), log: log,
		now: time.Now}}
	if c.algs == nil {
		c.algs = signingAlgs
	}
	first := o.Configuration
	if first == nil {
		first = &Configuration{}
	}
	compiled, faults := first.validate(ours)
	if len(faults) > 0 {
		return nil, fmt.Errorf("invalid authentication configuration: %w", faults.ToAggregate())
	}
	c.anonymous = first.Anonymous
	set := newIssuerSet()
	for i, config := range first.JWT {
		issuer := newJWTIssuer(config, compiled[i], c.algs, c.metrics, log)
		c.first = append(c.first, issuer)
		set.byURL[config.Issuer.URL] = issuer
	}
	c.inForce.Store(set)
	if o.File != "" {
		c.file = configfile.New(configfile.Options{Path: o.File, Name: "authentication", Initial: o.Content,
			Apply: c.apply, Log: log})
	}
	return c, nil
}

func newIssuerSet() *issuerSet {
	return &issuerSet{byURL: map[string]*jwtIssuer{}, users: newCache[*User](cachedUsers)}
}

// run asks the providers, and follows the file, until ctx ends.
func (c *jwtConfig) run(ctx context.Context) {
	defer c.running.Wait()
	for _, issuer := range c.first {
		c.start(ctx, issuer)
	}
	if c.file != nil {
		c.file.Run(ctx)
	}
}

// start runs an issuer until it is stopped, or ctx ends.
func (c *jwtConfig) start(ctx context.Context, issuer *jwtIssuer) {
	ctx, issuer.stop = context.WithCancel(ctx)
	c.running.Go(func() { issuer.run(ctx) })
}

// apply puts a changed file in force when the issuers that it adds have answered. Those that it has as before go on
// with the keys that are known. The tokens of those that it has no longer are refused as soon as it is in force;
// requests that have passed go on.
func (c *jwtConfig) apply(ctx context.Context, content []byte) error {
	config, err := ParseConfig(content)
	if err != nil {
		return err
	}
	compiled, faults := config.validate(c.ours)
	if !reflect.DeepEqual(config.Anonymous, c.anonymous) {
		faults = append(faults, field.Forbidden(field.NewPath("anonymous"), "changed from initial configuration file"))
	}
	if len(faults) > 0 {
		return fmt.Errorf("invalid authentication configuration: %w", faults.ToAggregate())
	}
	old, set := c.inForce.Load(), newIssuerSet()
	var added []*jwtIssuer
	for i, is := range config.JWT {
		issuer := old.byURL[is.Issuer.URL]
		if issuer == nil || !reflect.DeepEqual(issuer.config, is) {
			issuer = newJWTIssuer(is, compiled[i], c.algs, c.metrics, c.log)
			added = append(added, issuer)
			c.start(ctx, issuer)
		}
		set.byURL[is.Issuer.URL] = issuer
	}
	if err := waitAll(ctx, added); err != nil {
		for _, issuer := range added {
			issuer.stop()
		}
		return fmt.Errorf("%w: %w", configfile.ErrNotYet, err)
	}
	c.inForce.Store(set)
	for url, issuer := range old.byURL {
		if set.byURL[url] != issuer {
			issuer.stop()
		}
		if set.byURL[url] == nil {
			c.metrics.forget(issuer.hash)
		}
	}
	return nil
}

// waitAll waits until the providers of issuers have answered.
func waitAll(ctx context.Context, issuers []*jwtIssuer) error {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	for _, issuer := range issuers {
		if err := issuer.wait(ctx); err != nil {
			return err
		}
	}
	return nil
}
