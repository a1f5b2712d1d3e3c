package authn

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
)

// A provider whose user has many groups may keep them elsewhere: the token then says where a token with them is to be
// had. https://openid.net/specs/openid-connect-core-1_0.html#AggregatedDistributedClaims

const (
	claimNames   = "_claim_names"   // the sources of claims, by the claims' names
	claimSources = "_claim_sources" // where the sources are
)

// expand fetches the claim of the groups if it is kept elsewhere. The answer must be a token of the same issuer, for
// the same audience, and about the same user if it names one. Kubernetes takes one of any issuer: whoever can put a
// claim of its own into its token would then have any group.
func (i *jwtIssuer) expand(ctx context.Context, claims *claimSet) error {
	groups := i.config.ClaimMappings.Groups.Claim
	if groups == "" || claims.has(groups) || !claims.has(claimNames) {
		return nil
	}
	names, err := claim[map[string]string](claims, claimNames)
	if err != nil {
		return fmt.Errorf("%s: %w", claimNames, err)
	}
	name, distributed := names[groups]
	if !distributed {
		return nil
	}
	sources, err := claim[map[string]struct {
		Endpoint    string `json:"endpoint"`
		AccessToken string `json:"access_token"`
	}](claims, claimSources)
	if err != nil {
		return fmt.Errorf("%s: %w", claimSources, err)
	}
	source := sources[name] // which is there: the library looks
	if source.Endpoint == "" {
		return nil // an aggregated claim, which Kubernetes leaves out as well
	}
	if !strings.HasPrefix(source.Endpoint, "https://") {
		return fmt.Errorf("the source %q of claims is not https", name)
	}
	token, err := i.client.fetch(ctx, source.Endpoint, source.AccessToken)
	if err != nil {
		return err
	}
	value, err := i.elsewhere(ctx, claims, string(token), groups)
	if err != nil {
		return fmt.Errorf("the token of the source %q of claims: %w", name, err)
	}
	claims.raw[groups] = value
	return nil
}

// elsewhere is the value of a claim in another token, about the same user.
func (i *jwtIssuer) elsewhere(ctx context.Context, claims *claimSet, token, name string) (json.RawMessage, error) {
	other, err := i.valid(ctx, token)
	if err != nil {
		return nil, err
	}
	if subject, err := claim[string](other, "sub"); err == nil && subject != "" {
		if ours, err := claim[string](claims, "sub"); err != nil || ours != subject {
			return nil, errors.New("it is about another subject")
		}
	}
	if !other.has(name) {
		return nil, fmt.Errorf("claim %q is not present", name)
	}
	return other.raw[name], nil
}
