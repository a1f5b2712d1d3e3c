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

// ConfigOptions configure the issuers of JSON web tokens.
type ConfigOptions struct {
	// Configuration applies at first; nil has no issuers. Options decide about the anonymous user.
	Configuration *Configuration
	// File, if not "", is the file of the configuration, with this Content. It is read again when it changes.
	File    string
	Content []byte
	// SigningAlgs are the algorithms that issuers may use; nil are all asymmetric ones of RFC 7518.
	SigningAlgs []string
}

// readyTimeout limits the time that the issuers added by a changed file may take to answer.
const readyTimeout = 10 * time.Second

// jwtConfig applies a configuration of issuers, and follows its changes.
type jwtConfig struct {
	jwtTokens
	anonymous *AnonymousConfig
	ours      []string             // issuers that no configuration may have: the service account issuers
	first     []*jwtIssuer         // the issuers of the first configuration, for run to start
	file      *configfile.Follower // nil if the configuration does not change
}

// newJWTConfig validates the first configuration, and applies it.
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

// run contacts the providers, and follows the file, until ctx ends.
func (c *jwtConfig) run(ctx context.Context) {
	defer c.running.Wait()
	for _, issuer := range c.first {
		c.start(ctx, issuer)
	}
	if c.file != nil {
		c.file.Run(ctx)
	}
}

// start runs an issuer in the background until it is stopped, or ctx ends.
func (c *jwtConfig) start(ctx context.Context, issuer *jwtIssuer) {
	ctx, issuer.stop = context.WithCancel(ctx)
	c.running.Go(func() { issuer.run(ctx) })
}

// apply applies a changed file when the issuers that it adds have answered. Unchanged issuers continue with the
// known keys. Tokens of removed issuers are refused from then on; requests that were authenticated before continue.
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
	for i, entry := range config.JWT {
		issuer := old.byURL[entry.Issuer.URL]
		if issuer == nil || !reflect.DeepEqual(issuer.config, entry) {
			issuer = newJWTIssuer(entry, compiled[i], c.algs, c.metrics, c.log)
			added = append(added, issuer)
			c.start(ctx, issuer)
		}
		set.byURL[entry.Issuer.URL] = issuer
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
