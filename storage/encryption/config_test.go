package encryption

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestParse_ReportsTheErrorsOfKubernetes(t *testing.T) {
	t.Parallel()
	resources := func(list string) string { return "- resources: " + list + "\n  providers: [identity: {}]\n" }
	providers := func(list string) string { return "- resources: [secrets]\n  providers: [" + list + "]\n" }
	kms := func(members string) string {
		return providers("kms: {apiVersion: v2, name: a, endpoint: unix:///a, " + members + "}")
	}
	for text, want := range map[string]string{
		"":                                  `resources: Required value: at least one resources is required`,
		"- {}\n":                            `resources[0].providers: Required value: at least one`,
		resources("[]"):                     `resources[0].resources: Required value: at least one`,
		resources("[Secrets]"):              `resources[0].resources[0]: Invalid value: "Secrets": resource name should not`,
		resources(`["*"]`):                  `use '*.' to encrypt all the resources from core API group`,
		resources(`["secrets.*"]`):          `encrypting the same resource across groups is not supported`,
		resources("[events.events.k8s.io]"): `Use 'events' instead`,
		resources("[ingresses.extensions]"): `'extensions' group has been removed`,
		resources("[apiserveripinfo]"):      `resources which do not have REST API/s cannot be encrypted`,
		resources("[secrets, secrets]"):     `the same resource cannot be specified multiple times`,
		resources(`[secrets, "*."]`):        `using overlapping resources such as 'secrets' and '*.'`,
		resources(`["*.*", a.b]`):           `using overlapping resources`,
		resources(`["*.b"]`) + resources("[a.b]"): `resources[1].resources[0]: Invalid value: "a.b": resource "a.b" is masked ` +
			`by earlier rule "*.b"`,
		resources(`["*.*"]`) + resources(`["*."]`): `resource "*." is masked by earlier rule "*.*"`,
		providers(""):                            `resources[0].providers: Required value: at least one`,
		providers("{}"):                          `provider does not contain any of the expected providers`,
		providers("{identity: {}, kms: {}}"):     `more than one provider specified in a single element`,
		providers("aesgcm: {}"):                  `resources[0].providers[0].aesgcm.keys: Required value: at least one`,
		providers("aescbc: {keys: [{}]}"):        `keys[0].name: Required value: name is a mandatory field for a key`,
		providers("aescbc: {keys: [{name: a}]}"): `keys[0].secret: Required value: secret is a mandatory field for a key`,
		providers("aescbc: {keys: [{name: a, secret: '*'}]}"): `keys[0].secret: Invalid value: "REDACTED": secrets must ` +
			`be base64 encoded`,
		providers("secretbox: {keys: [{name: a, secret: c2VjcmV0IGlzIHNlY3VyZQ==}]}"): `"REDACTED": secret is not of the ` +
			`expected length, got 16, expected one of [32]`,
		providers("kms: {name: a, endpoint: unix:///a}"):                     `kms.apiVersion: Invalid value: "": KMS v1, which is the default`,
		providers("kms: {apiVersion: v1, name: a, endpoint: unix:///a}"):     `deprecated and not supported: use v2`,
		providers("kms: {apiVersion: v2, endpoint: unix:///a}"):              `name is a mandatory field for a provider`,
		providers("kms: {apiVersion: v2, name: 'a:b', endpoint: unix:///a}"): `invalid KMS provider name a:b, must not contain`,
		providers("kms: {apiVersion: v2, name: a}"):                          `endpoint is a mandatory field for a kms`,
		providers("kms: {apiVersion: v2, name: a, endpoint: 'http://a'}"):    `unsupported scheme "http" for KMS provider`,
		kms("timeout: 0s"):  `timeout: Invalid value: "0s": timeout should be a positive value`,
		kms("cachesize: 1"): `cachesize: Invalid value: 1: cachesize is not supported in v2`,
		kms("typo: 1"):      `unknown field "resources[0].providers[0].kms.typo"`,
		providers("kms: {apiVersion: v2, name: a, endpoint: unix:///a}, kms: {apiVersion: v2, name: a, endpoint: unix:///b}"): "" +
			`duplicate KMS provider name a, names must be unique`,
	} {
		_, err := Parse([]byte("apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\nresources:\n" + text))
		require.ErrorContains(t, err, want, text)
	}
	for text, want := range map[string]string{
		"": "is empty",
		"apiVersion: apiserver.config.k8s.io/v1beta1\nkind: EncryptionConfiguration": "got unexpected config type",
		"apiVersion: v1\nkind: Secret": "got unexpected config type",
		"a: " + key1 + "\nb: [":        "is not YAML",
	} {
		_, err := Parse([]byte(text))
		require.ErrorContains(t, err, want)
		require.NotContains(t, err.Error(), key1)
	}
}

func TestSecret_IsNotPrinted(t *testing.T) {
	t.Parallel()
	for _, format := range []string{"%v", "%+v", "%#v", "%s", "%q"} {
		require.NotContains(t, fmt.Sprintf(format, Key{Name: "a", Secret: key1}), key1[:8], format)
	}
}

func TestTable_UsesTheNarrowestRule(t *testing.T) {
	t.Parallel()
	file := configFile(t)
	rule := func(resource, key string) string {
		return fmt.Sprintf("- resources: [%q]\n  providers:\n%s", resource, indent(gcmKeys(key, key1)))
	}
	write(t, file, rule("secrets", "own")+rule("deployments.apps", "deployments")+rule("*.apps", "apps")+
		rule("widgets.example.com", "custom")+rule("*.", "core")+
		"- resources: [events]\n  providers: [identity: {}]\n")
	_, err := New(testContext(t), startBelow(t), Options{File: file, Log: quiet})
	require.ErrorContains(t, err, `resource "events" is masked by earlier rule "*."`)

	write(t, file, "- resources: [events]\n  providers: [identity: {}]\n"+rule("secrets", "own")+
		rule("deployments.apps", "deployments")+rule("*.apps", "apps")+rule("widgets.example.com", "custom")+
		rule("*.", "core")+rule("*.*", "all"))
	b := open(t, startBelow(t), Options{File: file})
	for collection, want := range map[string]string{
		"core/secrets": "own", "core/configmaps": "core", "apps/deployments": "deployments", "apps/replicasets": "apps",
		"example.com/widgets": "custom", "example.com/gadgets": "all", "core/events": "", "batch/jobs": "all",
	} {
		c := b.table.Load().chain(collection)
		if want == "" {
			require.True(t, c.plain(), collection)
			continue
		}
		require.True(t, strings.HasSuffix(c[0].prefix, ":"+want+":"), collection)
	}
	require.False(t, b.Transforms("claims/timers"), "documents that API servers use among themselves")
}
