package encryption

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/coxswain-dev/coxswain/storage"
)

var everything = schema.GroupResource{Group: "*", Resource: "*"}

// table has the keys for the documents of each collection. It is immutable.
type table struct {
	rules map[schema.GroupResource]chain
	kms   []*kms
}

// chain has the keys of a resource in the order of the configuration. The first key writes.
type chain []*link

// link is one key of a provider, or a provider without keys.
type link struct {
	prefix string // of stored documents, "" for identity
	transformer
	meter
}

// chain returns the chain of a collection, or nil if its documents are stored in plain text. A rule for the resource
// precedes a rule for its group.
func (t *table) chain(collection string) chain {
	if storage.IsInternal(collection) { // it contains only names
		return nil
	}
	group, resource, _ := strings.Cut(collection, "/")
	if group == "core" {
		group = ""
	}
	for _, rule := range []schema.GroupResource{{Group: group, Resource: resource}, {Group: group, Resource: "*"},
		everything} {
		if c, ok := t.rules[rule]; ok {
			return c
		}
	}
	return nil
}

// seal appends the encrypted document with its prefix to dst.
func (c chain) seal(dst, document, place []byte) ([]byte, error) {
	first := c[0]
	began := time.Now()
	stored, err := first.seal(append(dst, first.prefix...), document, place)
	first.in.observe(began, err)
	return stored, err
}

// plain reports whether documents are written in plain text.
func (c chain) plain() bool { return c[0].prefix == "" }

var errNoKey = errors.New("no matching prefix found: the configuration has no such key")

// open decrypts a stored document. It tries keys of the same name in order.
func (c chain) open(ctx context.Context, stored, place []byte) (document []byte, stale bool, err error) {
	var failed []error
	for i, l := range c {
		if l.prefix == "" && isEncrypted(stored) || !bytes.HasPrefix(stored, []byte(l.prefix)) {
			continue
		}
		began := time.Now()
		document, stale, err := l.open(ctx, stored[len(l.prefix):], place)
		l.out.observe(began, err)
		if err == nil {
			return document, stale || i > 0, nil
		}
		failed = append(failed, err)
	}
	err = errNoKey
	if len(failed) > 0 {
		err = errors.Join(failed...)
	}
	return nil, false, fmt.Errorf("%s %w", describe(stored), err)
}

// describe returns the provider and key of a stored document, with a colon at the end.
func describe(stored []byte) string {
	if isEncrypted(stored) {
		return storage.EncryptionOf(stored)
	}
	return "an unencrypted document:"
}

// newTable creates the table of a configuration. It reuses the plugins of the old table that have not changed.
func (b *Backend) newTable(c *Configuration, old *table) (*table, error) {
	t := &table{rules: map[schema.GroupResource]chain{}}
	for _, conf := range c.Resources {
		var links chain
		for _, p := range conf.Providers {
			more, err := b.links(p, t, old)
			if err != nil {
				t.closeExcept(old)
				return nil, err
			}
			links = append(links, more...)
		}
		for _, name := range conf.Resources {
			gr := schema.ParseGroupResource(name)
			t.rules[gr] = append(slices.Clip(t.rules[gr]), links...)
		}
	}
	return t, nil
}

// closeExcept closes the plugins that other tables do not use.
func (t *table) closeExcept(others ...*table) {
	if t == nil {
		return
	}
	for _, k := range t.kms {
		if !slices.ContainsFunc(others, func(o *table) bool { return o != nil && slices.Contains(o.kms, k) }) {
			k.close()
		}
	}
}

// links creates the links of one provider.
func (b *Backend) links(p ProviderConfiguration, t, old *table) (chain, error) {
	keyed := func(name string, keys *Keys, newTransformer func([]byte) (transformer, error)) (chain, error) {
		prefix := storage.EncryptedPrefix + name + ":v1:"
		var links chain
		for _, key := range keys.Keys {
			secret, err := key.Secret.decode()
			if err != nil {
				return nil, err
			}
			cipher, err := newTransformer(secret)
			if err != nil {
				return nil, err
			}
			links = append(links, &link{prefix + key.Name + ":", cipher, b.metrics.meter(prefix)})
		}
		return links, nil
	}
	switch {
	case p.AESGCM != nil:
		return keyed("aesgcm", p.AESGCM, func(key []byte) (transformer, error) { return newGCM(key) })
	case p.AESCBC != nil:
		return keyed("aescbc", p.AESCBC, func(key []byte) (transformer, error) { return newCBC(key) })
	case p.Secretbox != nil:
		return keyed("secretbox", p.Secretbox, func(key []byte) (transformer, error) { return newBox(key) })
	case p.KMS != nil:
		k, err := b.plugin(p.KMS, t, old)
		if err != nil {
			return nil, err
		}
		prefix := storage.EncryptedPrefix + "kms:v2:" + p.KMS.Name + ":"
		return chain{&link{prefix, k, b.metrics.meter(prefix)}}, nil
	}
	return chain{&link{"", plain{}, b.metrics.meter("identity")}}, nil
}

// plugin returns the plugin of a configuration. It reuses the plugin of the old table if the configuration is the same.
func (b *Backend) plugin(config *KMS, t, old *table) (k *kms, err error) {
	if old != nil {
		if i := slices.IndexFunc(old.kms, func(k *kms) bool { return k.same(config) }); i >= 0 {
			k = old.kms[i]
		}
	}
	if k == nil {
		if k, err = newKMS(*config, b.options.Clock, b.options.Log, b.metrics.kms); err != nil {
			return nil, err
		}
	}
	t.kms = append(t.kms, k)
	return k, nil
}
