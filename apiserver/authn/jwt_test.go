package authn_test

import (
	"context"
	"crypto/sha256"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/coxswain-dev/coxswain/apiserver/authn"
)

const configHeader = "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthenticationConfiguration\n"

// issuerOf returns the entry of a provider in a configuration. mappings are below claimMappings; more are further
// fields.
func issuerOf(p *provider, mappings, more string) string {
	return fmt.Sprintf("- issuer: {url: %q, audiences: [coxswain], certificateAuthority: %q}\n"+
		"  claimMappings: %s\n%s", p.URL, p.pem, mappings, more)
}

// configured returns an authentication with a configuration in a file, whose changes it follows.
func configured(t testing.TB, text string) (a *authn.Authentication, file string) {
	t.Helper()
	file = write(t, "config.yaml", text)
	config, content, err := authn.ReadConfig(file)
	require.NoError(t, err)
	a = authenticate(t, authn.Options{Config: &authn.ConfigOptions{Configuration: config, File: file,
		Content: content}}, objects{})
	running(t, a)
	return a, file
}

// known waits until a token is accepted and returns its user.
func known(t testing.TB, a *authn.Authentication, token string) (user *authn.User) {
	t.Helper()
	require.Eventually(t, func() bool {
		id, ok, err := a.AuthenticateToken(t.Context(), token, nil)
		if ok && err == nil {
			user = id.User
		}
		return user != nil
	}, patience, tick)
	return user
}

func refused(t testing.TB, a *authn.Authentication, token, words string) {
	t.Helper()
	_, ok, err := a.AuthenticateToken(t.Context(), token, nil)
	require.False(t, ok)
	if words == "" {
		require.NoError(t, err, "nobody's token")
		return
	}
	require.ErrorContains(t, err, words)
	require.NotContains(t, err.Error(), token)
}

func TestJWT_TwoIssuersWithTheirMappings(t *testing.T) {
	t.Parallel()
	corp, ci := startProvider(t), startProvider(t)
	a, _ := configured(t, configHeader+"jwt:\n"+
		issuerOf(corp, `
    username: {expression: 'claims.email_verified ? "corp:" + claims.email : ""'}
    groups: {expression: 'claims.roles.split(",").map(r, "corp:" + r)'}
    uid: {claim: oid}
    extra:
    - {key: example.com/tenant, valueExpression: claims.tenant}
    - {key: example.com/none, valueExpression: 'claims.?nothing.orValue("")'}
`, `  claimValidationRules:
  - {claim: hd, requiredValue: example.com}
  - {expression: 'claims.exp - claims.iat <= 7200', message: lives too long}
  userValidationRules:
  - {expression: "!user.groups.exists(g, g.startsWith('corp:system:'))", message: groups of the system}
`)+issuerOf(ci, `{username: {claim: sub, prefix: "ci:"}, groups: {claim: groups, prefix: ""}}`, ""))
	claims := func(more map[string]any) map[string]any {
		all := map[string]any{"email": "jane@example.com", "email_verified": true, "roles": "devs,ops", "hd": "example.com",
			"tenant": []string{"blue", ""}, "jti": "7", "oid": "42"}
		for k, v := range more {
			all[k] = v
		}
		return all
	}
	require.Equal(t, &authn.User{Name: "corp:jane@example.com", UID: "42",
		Groups: []string{"corp:devs", "corp:ops", "system:authenticated"},
		Extra: map[string][]string{"example.com/tenant": {"blue"},
			"authentication.kubernetes.io/credential-id": {"JTI=7"}}},
		known(t, a, corp.token(t, claims(nil))))
	require.Equal(t, &authn.User{Name: "ci:robot", Groups: []string{"g", "system:authenticated"}},
		known(t, a, ci.token(t, map[string]any{"sub": "robot", "groups": "g"})))

	for words, more := range map[string]map[string]any{
		"the token has no user name":       {"email_verified": false},
		"no such key: email":               {"email": nil},
		"no such key: roles":               {"roles": nil},
		"parse uid claim":                  {"oid": 5},
		"required claim hd value does not": {"hd": "example.org"},
		"lives too long":                   {"exp": time.Now().Add(3 * time.Hour).Unix()},
		"groups of the system":             {"roles": "devs,system:masters"},
		"a string or a list of strings":    {"tenant": []any{"a", 5}},
		"expected audience":                {"aud": "other"},
		`claim "AUD" may be taken for`:     {"AUD": "other"},
		`claim "ſub" may be taken for`:     {"ſub": "root"},
		"expired":                          {"exp": time.Now().Add(-time.Minute).Unix()},
	} {
		c := claims(more)
		for name, value := range c {
			if value == nil {
				delete(c, name)
			}
		}
		refused(t, a, corp.token(t, c), words)
	}
	// One issuer cannot sign for the other.
	refused(t, a, ci.token(t, claims(map[string]any{"iss": corp.URL})), "failed to verify id token signature")
	refused(t, a, ci.token(t, claims(map[string]any{"iss": "https://elsewhere"})), "")
	refused(t, a, corp.token(t, claims(map[string]any{"iss": []string{corp.URL, ci.URL}})), "")
	refused(t, a, ci.token(t, map[string]any{"pad": strings.Repeat("x", 200<<10)}), "")
}

// These are the rules in docs/authentication.md for an issuer without prefixes.
func TestJWT_RulesProtectTheNamesOfTheSystem(t *testing.T) {
	t.Parallel()
	p := startProvider(t)
	a, _ := configured(t, configHeader+"jwt:\n"+issuerOf(p,
		`{username: {claim: sub, prefix: ""}, groups: {claim: groups, prefix: ""}}`, `  userValidationRules:
  - {expression: "!user.username.startsWith('system:')", message: names of the system}
  - {expression: "user.groups.all(g, !g.startsWith('system:'))", message: groups of the system}
`))
	known(t, a, p.token(t, nil))
	known(t, a, p.token(t, map[string]any{"groups": []string{"devs", "ops"}}))
	refused(t, a, p.token(t, map[string]any{"sub": "system:serviceaccount:kube-system:root"}), "names of the system")
	refused(t, a, p.token(t, map[string]any{"groups": []string{"devs", "system:masters"}}), "groups of the system")
	refused(t, a, p.token(t, map[string]any{"groups": "system:masters"}), "groups of the system")
}

// The result of an expression over a very large claim is limited, and so is its time.
func TestJWT_ExpressionsEnd(t *testing.T) {
	t.Parallel()
	p := startProvider(t)
	a, _ := configured(t, configHeader+"jwt:\n"+issuerOf(p, `
    username: {claim: sub, prefix: ""}
    groups: {expression: "dyn(claims.g).filter(x, dyn(claims.g).all(y, dyn(claims.g).all(z, x + y != z)))"}
`, ""))
	known(t, a, p.token(t, map[string]any{"g": []string{"a"}}))
	many := make([]string, 10_000)
	for i := range many {
		many[i] = fmt.Sprint(i)
	}
	_, ok, err := a.AuthenticateToken(t.Context(), p.token(t, map[string]any{"g": many}), nil)
	require.False(t, ok)
	require.Regexp(t, "cost limit exceeded|interrupted", err.Error())
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, ok, err = a.AuthenticateToken(ctx, p.token(t, map[string]any{"g": many[:20]}), nil)
	require.False(t, ok)
	require.ErrorContains(t, err, "interrupted")
}

func TestJWT_DiscoveryDocumentMustNameTheIssuer(t *testing.T) {
	t.Parallel()
	p := startProvider(t)
	p.change(func(p *provider) { p.path, p.issuer = "/discovery", "https://issuer.example.com" })
	config := func(url string) string {
		return configHeader + fmt.Sprintf("jwt:\n- issuer: {url: %q, discoveryURL: %q, audiences: [a, coxswain], "+
			"audienceMatchPolicy: MatchAny, certificateAuthority: %q}\n  claimMappings: {username: {claim: sub, "+
			"prefix: \"\"}}\n", url, p.URL+"/discovery", p.pem)
	}
	a, file := configured(t, config("https://issuer.example.com"))
	token := p.token(t, map[string]any{"iss": "https://issuer.example.com"})
	require.Equal(t, "jane", known(t, a, token).Name)
	// A provider that names another issuer is rejected; the configuration before remains.
	require.NoError(t, os.WriteFile(file, []byte(config("https://other.example.com")), 0o600))
	require.Eventually(t, func() bool { return reloads(t, a, "failure") == 1 }, patience, tick)
	require.Equal(t, "jane", known(t, a, token).Name)
	refused(t, a, p.token(t, map[string]any{"iss": "https://other.example.com"}), "")
}

// reloads returns how often a changed file was applied (success) or rejected (failure).
func reloads(t testing.TB, a *authn.Authentication, status string) (n int) {
	t.Helper()
	registry := prometheus.NewRegistry()
	registry.MustRegister(a.Metrics()...)
	families, err := registry.Gather()
	require.NoError(t, err)
	for _, family := range families {
		if family.GetName() != "apiserver_authentication_config_controller_automatic_reloads_total" {
			continue
		}
		for _, m := range family.Metric {
			for _, label := range m.Label {
				if label.GetName() == "status" && label.GetValue() == status {
					n = int(m.Counter.GetValue())
				}
			}
		}
	}
	return n
}

func TestJWT_ReloadAddsAndRemovesIssuersAndKeepsThemAfterABadFile(t *testing.T) {
	t.Parallel()
	first, second := startProvider(t), startProvider(t)
	entry := func(p *provider, prefix string) string {
		return issuerOf(p, fmt.Sprintf("{username: {claim: sub, prefix: %q}}", prefix), "")
	}
	a, file := configured(t, configHeader+"jwt:\n"+entry(first, "one:"))
	one, two := first.token(t, nil), second.token(t, nil)
	require.Equal(t, "one:jane", known(t, a, one).Name)
	refused(t, a, two, "")
	replace := func(text string) {
		t.Helper()
		before := reloads(t, a, "success")
		require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
		require.Eventually(t, func() bool { return reloads(t, a, "success") == before+1 }, patience, tick)
	}
	keep := func(text string) {
		t.Helper()
		before := reloads(t, a, "failure")
		require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
		require.Eventually(t, func() bool { return reloads(t, a, "failure") > before }, patience, tick)
		require.Equal(t, "one:jane", known(t, a, one).Name)
		refused(t, a, two, "")
	}

	keep(configHeader + "jwt: 5\n")
	keep(configHeader + "jwt:\n" + entry(first, "one:") + entry(first, "two:"))
	keep(configHeader + "anonymous: {enabled: true}\njwt:\n" + entry(second, "two:"))

	// Requests continue while the file changes; the provider of the issuer that stays gets no requests.
	stop, fetches := make(chan struct{}), first.asked.Load()
	var requests sync.WaitGroup
	requests.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				id, ok, err := a.AuthenticateToken(t.Context(), one, nil)
				if !ok || err != nil || id.User.Name != "one:jane" {
					t.Errorf("refused meanwhile: %v", err)
					return
				}
			}
		}
	})
	replace(configHeader + "jwt:\n" + entry(second, "two:") + entry(first, "one:"))
	close(stop)
	requests.Wait()
	require.Equal(t, fetches, first.asked.Load())
	require.Equal(t, "two:jane", known(t, a, two).Name)

	// Another mapping applies at once, even to a token that was accepted a moment ago.
	replace(configHeader + "jwt:\n" + entry(second, "zwei:") + entry(first, "one:"))
	require.Equal(t, "zwei:jane", known(t, a, two).Name)
	replace(configHeader + "jwt:\n" + entry(first, "one:"))
	refused(t, a, two, "")
	require.Equal(t, "one:jane", known(t, a, one).Name)
	replace(configHeader)
	refused(t, a, one, "")
	require.NoError(t, os.Remove(file))
	require.Eventually(t, func() bool { return reloads(t, a, "failure") == 4 }, patience, tick)
	replace(configHeader + "jwt:\n" + entry(second, "two:"))
	known(t, a, two)
	require.Positive(t, testutil.CollectAndCount(a.Metrics()[0]))
}

// Any client can send tokens with unknown keys: the provider must not be asked for each, and tokens with known keys
// must not wait.
func TestJWT_UnknownKeysAreLookedUpRarely(t *testing.T) {
	t.Parallel()
	p := startProvider(t)
	a, file := configured(t, configHeader+"jwt:\n"+issuerOf(p, `{username: {claim: sub, prefix: ""}}`, ""))
	good := p.token(t, nil)
	known(t, a, good)
	require.EqualValues(t, 1, p.asked.Load())
	forger := startProvider(t)
	forger.change(func(f *provider) { f.id = "unknown" })
	for i := range 50 {
		refused(t, a, forger.token(t, map[string]any{"iss": p.URL, "jti": fmt.Sprint(i)}), "failed to verify")
	}
	require.EqualValues(t, 1, p.asked.Load(), "they were fetched a moment ago")

	// An issuer that is added and hangs is not waited for, and keeps the previous file in force.
	slow := startProvider(t)
	slow.hang.Lock()
	require.NoError(t, os.WriteFile(file, []byte(configHeader+"jwt:\n"+
		issuerOf(p, `{username: {claim: sub, prefix: ""}}`, "")+issuerOf(slow, `{username: {claim: sub, prefix: ""}}`, "")),
		0o600))
	for i := range 50 {
		known(t, a, p.token(t, map[string]any{"jti": fmt.Sprint(i)}))
	}
	slow.hang.Unlock()
	require.Equal(t, "jane", known(t, a, slow.token(t, nil)).Name)
}

func TestJWT_RejectsInvalidConfigurations(t *testing.T) {
	t.Parallel()
	entry := func(text string) string { return configHeader + "jwt:\n- " + text }
	issuer := func(more string) string {
		return entry("issuer: {" + more + "}\n  claimMappings: {username: {claim: sub, prefix: ''}}\n")
	}
	with := func(more string) string {
		return entry("issuer: {url: 'https://a', audiences: [x]}\n" + more)
	}
	const named = "  claimMappings: {username: {claim: sub, prefix: ''}"
	for text, words := range map[string]string{
		issuer("audiences: [x]"):                       "jwt[0].issuer.url: Required value",
		issuer("url: 'http://a', audiences: [x]"):      `jwt[0].issuer.url: Invalid value: "http://a": URL scheme must be https`,
		issuer("url: 'https://a?b', audiences: [x]"):   "URL must not contain a query",
		issuer("url: 'https://a#b', audiences: [x]"):   "URL must not contain a fragment",
		issuer("url: 'https://a:b@c', audiences: [x]"): "URL must not contain a username or password",
		issuer("url: 'https://', audiences: [x]"):      "URL must have a host",
		issuer("url: '" + authn.DefaultIssuer + "', audiences: [x]"): "URL must not overlap with disallowed issuers: [" +
			authn.DefaultIssuer + "]",
		issuer("url: 'https://a', discoveryURL: 'https://a/', audiences: [x]"): "jwt[0].issuer.discoveryURL: Invalid " +
			`value: "https://a/": discoveryURL must be different from URL`,
		issuer("url: 'https://a'"): "jwt[0].issuer.audiences: Required value: at least one jwt[0].issuer.audiences is " +
			"required",
		issuer("url: 'https://a', audiences: [x, '']"): "jwt[0].issuer.audiences[1]: Required value",
		issuer("url: 'https://a', audiences: [x, x], audienceMatchPolicy: MatchAny"): "jwt[0].issuer.audiences[1]: " +
			`Duplicate value: "x"`,
		issuer("url: 'https://a', audiences: [x, z]"): "audienceMatchPolicy must be MatchAny for multiple audiences",
		issuer("url: 'https://a', audiences: [x], audienceMatchPolicy: All"): "audienceMatchPolicy must be empty or " +
			"MatchAny for single audience",
		issuer("url: 'https://a', audiences: [x], certificateAuthority: x"): "jwt[0].issuer.certificateAuthority: " +
			`Invalid value: "<omitted>"`,
		issuer("url: 'https://a', audiences: [x], egressSelectorType: cluster"): "jwt[0].issuer.egressSelectorType: " +
			`Invalid value: "cluster": egress selector is not supported`,
		with(""): "jwt[0].claimMappings.username: Required value: claim or expression is required",
		with("  claimMappings: {username: {claim: sub}}"): "jwt[0].claimMappings.username.prefix: Required value: " +
			"prefix is required when claim is set",
		with("  claimMappings: {username: {claim: sub, expression: claims.sub}}"): "jwt[0].claimMappings.username: " +
			`Invalid value: "": claim and expression can't both be set`,
		with("  claimMappings: {username: {prefix: a, expression: claims.sub}}"): "may not be specified when expression is",
		with("  claimMappings: {username: {expression: 'claims.sub +'}}"): "jwt[0].claimMappings.username.expression: " +
			`Invalid value: "claims.sub +": compilation failed`,
		with("  claimMappings: {username: {expression: user.username}}"):         "undeclared reference to 'user'",
		with("  claimMappings: {username: {expression: claims.email}}"):          "claims.email_verified must be used in",
		with("  claimMappings: {username: {expression: 'claims.?email'}}"):       "claims.email_verified must be used in",
		with(named + ", uid: {claim: a, expression: claims.a}}"):                 "jwt[0].claimMappings.uid: Invalid value",
		with(named + ", extra: [{key: a, valueExpression: claims.a}]}"):          "jwt[0].claimMappings.extra[0].key",
		with(named + ", extra: [{key: a.b/C, valueExpression: claims.a}]}"):      "must be lowercase",
		with(named + ", extra: [{key: a.k8s.io/c, valueExpression: claims.a}]}"): "are reserved for Kubernetes use",
		with(named + ", extra: [{key: a.b/c}]}"):                                 "jwt[0].claimMappings.extra[0].valueExpression: Required value",
		with(named + ", extra: [{key: a.b/c, valueExpression: \"'a'\"}, {key: a.b/c, valueExpression: \"'b'\"}]}"): "jwt[0]." +
			`claimMappings.extra[1].key: Duplicate value: "a.b/c"`,
		with(named + "}\n  claimValidationRules: [{}]"): "jwt[0].claimValidationRules[0]: Required value: claim or " +
			"expression is required",
		with(named + "}\n  claimValidationRules: [{claim: a, expression: b}]"): "claim and expression can't both be set",
		with(named + "}\n  claimValidationRules: [{claim: a, message: b}]"):    "may not be specified when claim is set",
		with(named + "}\n  claimValidationRules: [{claim: a}, {claim: a}]"):    `Duplicate value: "a"`,
		with(named + "}\n  claimValidationRules: [{expression: 'true', requiredValue: b}]"): "may not be specified when " +
			"expression is set",
		with(named + "}\n  claimValidationRules: [{expression: claims.a}]"): "jwt[0].claimValidationRules[0].expression: " +
			`Invalid value: "claims.a": must evaluate to bool`,
		with(named + "}\n  userValidationRules: [{}]"):                                         "jwt[0].userValidationRules[0].expression: Required value",
		with(named + "}\n  userValidationRules: [{expression: user.name == 'a'}]"):             "undefined field 'name'",
		with(named + "}\n  userValidationRules: [{expression: 'true'}, {expression: 'true'}]"): "Duplicate value",
		with(named+"}\n- issuer: {url: 'https://a', audiences: [x]}\n"+named) + "}": "jwt[1].issuer.url: Duplicate value: " +
			`"https://a"`,
		configHeader + "jwt:\n" + strings.Repeat("- {}\n", 65): "jwt: Too many: 65: must have at most 64 items",
		configHeader + "anonymous: {conditions: [{path: /livez}]}": "enabled should be set to true when conditions are " +
			"defined",
	} {
		config, err := authn.ParseConfig([]byte(text))
		require.NoError(t, err, text)
		_, err = authn.New(authn.Options{ServiceAccounts: newIssuer(t), Config: &authn.ConfigOptions{
			Configuration: config}}, objects{}, clocktesting.NewFakePassiveClock(now), slog.Default())
		require.ErrorContains(t, err, words, text)
	}
}

// BenchmarkJWT measures a token that was accepted a moment ago, and one that was not: the cost of its signature and
// mapping.
func BenchmarkJWT(b *testing.B) {
	p := startProvider(b)
	for name, mapping := range map[string]string{
		"claim":      `{username: {claim: sub, prefix: "p:"}, groups: {claim: groups, prefix: "p:"}}`,
		"expression": `{username: {expression: '"p:" + claims.sub'}, groups: {expression: 'dyn(claims.groups).map(g, "p:" + g)'}}`,
	} {
		a, _ := configured(b, configHeader+"jwt:\n"+issuerOf(p, mapping, ""))
		token := func(i int) string { return p.token(b, map[string]any{"n": i, "groups": []string{"a", "b"}}) }
		known(b, a, token(0))
		measure := func(name string, token func(i int) string) {
			b.Run(name, func(b *testing.B) {
				b.ReportAllocs()
				for i := 0; b.Loop(); i++ {
					b.StopTimer()
					text := token(i)
					b.StartTimer()
					if _, ok, err := a.AuthenticateToken(b.Context(), text, nil); !ok || err != nil {
						b.Fatal(err)
					}
				}
			})
		}
		once := token(0)
		measure(name+"/cached", func(int) string { return once })
		measure(name+"/new", func(i int) string { return token(i + 1) })
	}
}

// The metrics must describe the results of an issuer's tokens, and its keys, as long as the issuer is configured.
func TestJWT_MetricsDescribeEachIssuer(t *testing.T) {
	t.Parallel()
	p := startProvider(t)
	a, file := configured(t, configHeader+"jwt:\n"+issuerOf(p, "{username: {claim: sub, prefix: \"\"}}", ""))
	known(t, a, p.token(t, nil))
	// metric returns the series of a metric by the value of a label: their counts, or their values.
	metric := func(name, label string) map[string]float64 {
		t.Helper()
		registry, series := prometheus.NewRegistry(), map[string]float64{}
		registry.MustRegister(a.Metrics()...)
		families, err := registry.Gather()
		require.NoError(t, err)
		for _, family := range families {
			if family.GetName() != "apiserver_authentication_jwt_authenticator_"+name {
				continue
			}
			for _, m := range family.Metric {
				labels := map[string]string{}
				for _, l := range m.Label {
					labels[l.GetName()] = l.GetValue()
				}
				require.Equal(t, fmt.Sprintf("sha256:%x", sha256.Sum256([]byte(p.URL))), labels["jwt_issuer_hash"])
				series[labels[label]] = m.Gauge.GetValue() + float64(m.Histogram.GetSampleCount())
			}
		}
		return series
	}
	before := metric("latency_seconds", "result")
	known(t, a, p.token(t, map[string]any{"jti": "2"}))
	refused(t, a, p.token(t, map[string]any{"aud": "another"}), "audience")
	refused(t, a, p.token(t, map[string]any{"iss": "https://nobody.example.com"}), "")
	after := metric("latency_seconds", "result")
	require.InDelta(t, before["success"]+1, after["success"], 0)
	require.InDelta(t, before["failure"]+1, after["failure"], 0)
	require.Positive(t, metric("jwks_fetch_last_timestamp_seconds", "result")["success"])
	require.Len(t, metric("jwks_fetch_last_key_set_info", "hash"), 1)

	require.NoError(t, os.WriteFile(file, []byte(configHeader+"jwt: []\n"), 0o600))
	require.Eventually(t, func() bool { return reloads(t, a, "success") == 1 }, patience, tick)
	require.Empty(t, metric("jwks_fetch_last_key_set_info", "hash"))
}
