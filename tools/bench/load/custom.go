package load

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"time"
)

// Custom resources and built-in ones are measured in the same run, in turns, since the ratio is the figure of interest.

// variety is a kind of objects to create, read and watch.
type variety struct {
	name     string
	path     func(namespace string) string
	template func(namespace string) podTemplate
	made     int // number of objects in the standing namespace
}

func configs() *variety { return &variety{name: "a ConfigMap", path: configsPath, template: newConfig} }

func customs() *variety {
	return &variety{name: "a custom resource", path: certificatesPath, template: newCertificate}
}

func pods() *variety { return &variety{name: "a pod", path: podsPath, template: newPod} }

const customGroup, customPlural, customKind = "bench.example.com", "certificates", "Certificate"

func configsPath(namespace string) string { return "/api/v1/namespaces/" + namespace + "/configmaps" }

func certificatesPath(namespace string) string {
	return "/apis/" + customGroup + "/v1/namespaces/" + namespace + "/" + customPlural
}

// newConfig returns the template of a ConfigMap of 2 kB.
func newConfig(namespace string) podTemplate {
	return cutTemplate(fmt.Sprintf(`{"apiVersion":"v1","kind":"ConfigMap","metadata":%s,"data":{%s}}`,
		customMeta(namespace), customSettings(22)))
}

// newCertificate returns the template of a custom resource of 2 kB, which is valid by the definition in
// certificates.yaml.
func newCertificate(namespace string) podTemplate {
	return cutTemplate(fmt.Sprintf(`{"apiVersion":"bench.example.com/v1","kind":"Certificate","metadata":%s,"spec":{`+
		`"commonName":"shop.example.com","dnsNames":["shop.example.com","www.example.com","*.shop.example.com"],`+
		`"issuerRef":{"name":"letters"},"privateKey":{"algorithm":"ECDSA","size":256},"secretName":"shop-tls",`+
		`"usages":["digital signature","server auth"],"secretTemplate":{"annotations":{%s}}}}`,
		customMeta(namespace), customSettings(12)))
}

func customMeta(namespace string) string {
	return fmt.Sprintf(`{"name":"NAME","namespace":%q,"labels":{"app":"bench","part":"PART",`+
		`"turn":"0000000000000000000"}}`, namespace)
}

func customSettings(n int) string {
	settings := make([]string, n)
	for i := range settings {
		settings[i] = fmt.Sprintf(`"setting-%02d":"the value of setting number %02d, which says a little more of it"`, i, i)
	}
	return strings.Join(settings, ",")
}

// define creates the definition, unless the session has one, and waits until its kind is served.
func (s *Session) define(ctx context.Context) error {
	if len(s.definitions) > 0 {
		return nil
	}
	c, err := s.target.dial(ctx)
	if err != nil {
		return err
	}
	defer c.close()
	crd, err := definition(customGroup, customPlural, customKind, descriptionLength, true)
	if err == nil {
		err = c.define(ctx, customGroup, customPlural, crd)
	}
	if err == nil {
		s.definitions = append(s.definitions, customPlural+"."+customGroup)
	}
	return err
}

const definitionsPath = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"

// define creates a definition, and waits until its kind is served.
func (c *conn) define(ctx context.Context, group, plural string, crd []byte) error {
	if _, err := c.do(http.MethodPost, definitionsPath, jsonType, crd, http.StatusCreated); err != nil {
		return err
	}
	return c.awaitKind(ctx, group, plural)
}

// awaitKind lists a kind's objects until the kind is served.
func (c *conn) awaitKind(ctx context.Context, group, plural string) error {
	for {
		response, err := c.send(http.MethodGet, "/apis/"+group+"/v1/"+plural+"?limit=1", "", nil)
		if err != nil {
			return err
		}
		c.body.Reset()
		if _, err := c.body.ReadFrom(response.Body); err != nil {
			return err
		}
		switch {
		case response.StatusCode == http.StatusOK:
			return nil
		case response.StatusCode != http.StatusNotFound || ctx.Err() != nil:
			return fmt.Errorf("wait for %s.%s: %s: %.300s", plural, group, response.Status, c.body.Bytes())
		}
		time.Sleep(200 * time.Microsecond)
	}
}

// fillVariety creates objects of a variety until there are Options.Objects.
func (s *Session) fillVariety(ctx context.Context, v *variety) error {
	template := v.template(s.standing)
	err := s.makeObjects(ctx, v.path(s.standing), v.made, s.options.Objects, func(n int) []byte {
		return template.named(podName(n), n)
	})
	v.made = max(v.made, s.options.Objects)
	return err
}

// turns is how often each of two compared workloads runs, for a third of Options.Duration each time.
const turns = 9

// compare runs the same work on two varieties in turns. It returns the result of the first, with its ratio to the other
// one as a note.
func (s *Session) compare(ctx context.Context, run func(v *variety) (Result, error), subject, reference *variety) (
	Result, error) {
	defer func(whole time.Duration) { s.options.Duration = whole }(s.options.Duration)
	s.options.Duration = max(s.options.Duration/3, 100*time.Millisecond)
	var results [2][]Result
	for range turns {
		for i, v := range []*variety{subject, reference} {
			r, err := run(v)
			if err != nil {
				return r, fmt.Errorf("%s: %w", v.name, err)
			}
			results[i] = append(results[i], r)
		}
	}
	r, other := Median(results[0]), Median(results[1])
	if other.CPU > 0 {
		r.Ratio = float64(r.CPUPerOperation()) / float64(other.CPUPerOperation())
		r.Notes = append(r.Notes, fmt.Sprintf("%.2f × the CPU of %s, which takes %v", r.Ratio, reference.name,
			other.CPUPerOperation().Round(100*time.Nanosecond)))
	}
	return r, ctx.Err()
}

// compareReads compares reads of custom resources with reads of ConfigMaps.
func (s *Session) compareReads(ctx context.Context, read func(ctx context.Context, s *Session, v *variety) (Result,
	error)) (Result, error) {
	if err := s.define(ctx); err != nil {
		return Result{}, err
	}
	if s.varieties == nil {
		s.varieties = []*variety{customs(), configs()}
	}
	for _, v := range s.varieties {
		if err := s.fillVariety(ctx, v); err != nil {
			return Result{}, err
		}
	}
	sizes, err := s.sizes(ctx)
	if err != nil {
		return Result{}, err
	}
	r, err := s.compare(ctx, func(v *variety) (Result, error) { return read(ctx, s, v) }, s.varieties[0],
		s.varieties[1])
	r.Notes = append(r.Notes, fmt.Sprintf("an object has %d bytes, a ConfigMap %d", sizes[0], sizes[1]))
	return r, err
}

// sizes returns the sizes of the varieties' objects in responses.
func (s *Session) sizes(ctx context.Context) (sizes []int, err error) {
	c, err := s.target.dial(ctx)
	if err != nil {
		return nil, err
	}
	defer c.close()
	for _, v := range s.varieties {
		body, err := c.do(http.MethodGet, v.path(s.standing)+"/"+podName(0), "", nil, http.StatusOK)
		if err != nil {
			return nil, err
		}
		sizes = append(sizes, len(body))
	}
	return sizes, nil
}

func customGet(ctx context.Context, s *Session) (Result, error) {
	return s.compareReads(ctx, func(ctx context.Context, s *Session, v *variety) (Result, error) {
		return s.requests(ctx, s.options.Clients, func(c *conn, _ int) error {
			_, err := c.do(http.MethodGet, v.path(s.standing)+"/"+podName(rand.N(v.made)), "", nil, http.StatusOK)
			return err
		})
	})
}

func customList(ctx context.Context, s *Session) (Result, error) {
	return s.compareReads(ctx, func(ctx context.Context, s *Session, v *variety) (Result, error) {
		return s.requests(ctx, 1, func(c *conn, _ int) error {
			_, err := c.drop(v.path(s.standing))
			return err
		})
	})
}

func customPatch(ctx context.Context, s *Session) (Result, error) {
	return s.compareReads(ctx, func(ctx context.Context, s *Session, v *variety) (Result, error) {
		return s.requests(ctx, s.options.Clients, func(c *conn, _ int) error {
			return turn(c, v.path(s.standing)+"/"+podName(rand.N(v.made)), mergeType)
		})
	})
}

func customWatch(ctx context.Context, s *Session) (Result, error) {
	return s.compareReads(ctx, func(ctx context.Context, s *Session, v *variety) (Result, error) {
		return s.watch(ctx, v.path(s.standing), func(c *conn) error {
			return turn(c, v.path(s.standing)+"/"+podName(rand.N(v.made)), mergeType)
		})
	})
}

// customCreate compares the creation of custom resources, which have a schema with ten rules, with that of pods.
func customCreate(ctx context.Context, s *Session) (Result, error) {
	if err := s.define(ctx); err != nil {
		return Result{}, err
	}
	return s.compare(ctx, func(v *variety) (Result, error) {
		template, path := v.template(s.passing), v.path(s.passing)
		return s.requests(ctx, s.options.Clients, func(c *conn, _ int) error {
			n := int(s.created.Add(1))
			_, err := c.do(http.MethodPost, path, jsonType, template.named(podName(n), n), http.StatusCreated)
			return err
		})
	}, customs(), pods())
}
