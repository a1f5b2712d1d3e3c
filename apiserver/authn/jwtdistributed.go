package authn

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
)

// A provider may keep a user's many groups in another place: the token then names the location of a token with the
// groups. https://openid.net/specs/openid-connect-core-1_0.html#AggregatedDistributedClaims

const (
	claimNames   = "_claim_names"   // maps the names of claims to the names of their sources
	claimSources = "_claim_sources" // the locations of the sources
)

// expand fetches the claim of the groups if another source has it. The answer must be a token of the same issuer
// and for the same audience, and if it names a user, about the same user. Kubernetes accepts a token of any issuer:
// a user who can put a claim of its own into its token would then have any group.
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
	source := sources[name] // it exists: the library checks that
	if source.Endpoint == "" {
		return nil // an aggregated claim; Kubernetes ignores it as well
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

// elsewhere returns the value of a claim in another token, which must be about the same user.
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
