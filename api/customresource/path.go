package customresource

import (
	"bytes"
	"fmt"
	"reflect"
	"regexp"
	"strings"
	"sync"

	"k8s.io/client-go/util/jsonpath"
)

// path finds a value in an object by a JSONPath from a definition, such as ".spec.replicas". It is safe for concurrent
// use.
type path struct {
	text   string
	names  []string  // if the path is plain, otherwise nil
	others sync.Pool // *jsonpath.JSONPath of a path that is not plain; each is used by one goroutine at a time
}

// plainPath matches a path that is a list of names. The library handles names with escapes.
var plainPath = regexp.MustCompile(`^(\.[A-Za-z_][A-Za-z0-9_-]*)+$`)

func newPath(text string) (*path, error) {
	p := &path{text: text}
	if plainPath.MatchString(text) {
		p.names = strings.Split(text[1:], ".")
		return p, nil
	}
	parsed, err := p.parse()
	if err != nil {
		return nil, err
	}
	p.others.Put(parsed)
	return p, nil
}

func (p *path) parse() (*jsonpath.JSONPath, error) {
	parsed := jsonpath.New(p.text).AllowMissingKeys(true)
	if err := parsed.Parse("{" + p.text + "}"); err != nil {
		return nil, fmt.Errorf("unrecognized column definition %q", p.text)
	}
	return parsed, nil
}

// isMetadata reports whether the path leads into the metadata.
func (p *path) isMetadata() bool { return !p.plain() || p.names[0] == "metadata" }

func (p *path) plain() bool { return p.names != nil }

// find returns the first value at the path.
func (p *path) find(content map[string]any) (value any, found bool) {
	if p.plain() {
		return lookUp(content, p.names)
	}
	parsed, ok := p.others.Get().(*jsonpath.JSONPath)
	if !ok {
		var err error
		if parsed, err = p.parse(); err != nil {
			return nil, false
		}
	}
	defer p.others.Put(parsed)
	results, err := parsed.FindResults(content)
	if err != nil || len(results) == 0 || len(results[0]) == 0 {
		return nil, false
	}
	return results[0][0].Interface(), true
}

// print formats a value as kubectl's JSONPath output does.
func (p *path) print(value any) (string, bool) {
	if text, ok := value.(string); ok {
		return text, true
	}
	var text bytes.Buffer
	if err := jsonpath.New(p.text).PrintResults(&text, []reflect.Value{reflect.ValueOf(value)}); err != nil {
		return "", false
	}
	return text.String(), true
}

// lookUp returns the value of a nested field.
func lookUp(content map[string]any, names []string) (value any, found bool) {
	value = content
	for _, name := range names {
		members, ok := value.(map[string]any)
		if !ok {
			return nil, false
		}
		if value, found = members[name]; !found {
			return nil, false
		}
	}
	return value, true
}
