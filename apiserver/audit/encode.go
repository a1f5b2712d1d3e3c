package audit

import (
	"bytes"
	"encoding/json"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/coxswain-dev/coxswain/apiserver/authn"
)

// typeMeta starts an event that stands by itself. Events in a list have none.
const typeMeta = `{"kind":"Event","apiVersion":"` + apiVersion + `",`

// append appends the event's members and the closing brace, in the order of Kubernetes' type. If bodies is false,
// it leaves out the bodies and marks the event as truncated.
func (e *event) append(b []byte, bodies bool) []byte {
	b = append(b, `"level":"`...)
	b = append(b, e.level.String()...)
	b = appendMember(b, `","auditID":`, e.id)
	b = append(b, `,"stage":"`...)
	b = append(b, e.stage.String()...)
	b = appendMember(b, `","requestURI":`, e.uri)
	b = appendMember(b, `,"verb":`, e.verb)
	b = appendUser(append(b, `,"user":`...), e.user)
	if e.impersonated != nil {
		b = appendUser(append(b, `,"impersonatedUser":`...), e.impersonated)
	}
	if len(e.ips) > 0 {
		b = appendStrings(append(b, `,"sourceIPs":`...), e.ips)
	}
	if e.agent != "" {
		b = appendMember(b, `,"userAgent":`, e.agent)
	}
	if e.object.resource != "" {
		b = e.object.append(append(b, `,"objectRef":{`...))
	}
	if e.code != 0 {
		b = e.appendStatus(b)
	}
	if bodies && len(e.request) > 0 {
		b = append(append(b, `,"requestObject":`...), e.request...)
	}
	if bodies && len(e.response) > 0 {
		b = append(append(b, `,"responseObject":`...), e.response...)
	}
	b = appendTime(append(b, `,"requestReceivedTimestamp":`...), e.received)
	b = appendTime(append(b, `,"stageTimestamp":`...), e.stamped)
	annotations := e.annotations
	if !bodies {
		annotations = markTruncated(annotations)
	}
	return append(appendAnnotations(b, annotations), '}')
}

func (o *object) append(b []byte) []byte {
	for _, m := range [...]struct{ key, value string }{
		{`"resource":`, o.resource}, {`"namespace":`, o.namespace}, {`"name":`, o.name}, {`"uid":`, string(o.uid)},
		{`"apiGroup":`, o.group}, {`"apiVersion":`, o.version}, {`"resourceVersion":`, o.resourceVersion},
		{`"subresource":`, o.subresource},
	} {
		if m.value != "" {
			b = append(appendMember(b, m.key, m.value), ',')
		}
	}
	b[len(b)-1] = '}' // resource is never empty here
	return b
}

// appendStatus appends the response's metav1.Status. Like Kubernetes, it always writes the metadata.
func (e *event) appendStatus(b []byte) []byte {
	b = append(b, `,"responseStatus":{"metadata":{},`...)
	if s := e.status; s != nil {
		for _, m := range [...]struct{ key, value string }{
			{`"status":`, s.Status}, {`"message":`, s.Message}, {`"reason":`, string(s.Reason)},
		} {
			if m.value != "" {
				b = append(appendMember(b, m.key, m.value), ',')
			}
		}
		if s.Details != nil {
			if details, err := json.Marshal(s.Details); err == nil {
				b = append(append(append(b, `"details":`...), details...), ',')
			}
		}
	}
	return append(strconv.AppendInt(append(b, `"code":`...), int64(e.code), 10), '}')
}

// appendAnnotations appends the annotations, sorted by key.
func appendAnnotations(b []byte, list []annotation) []byte {
	if len(list) == 0 {
		return b
	}
	slices.SortFunc(list, func(a, b annotation) int { return strings.Compare(a.key, b.key) })
	b = append(b, `,"annotations":{`...)
	for i, a := range list {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendString(append(appendString(b, a.key), ':'), a.value)
	}
	return append(b, '}')
}

// markTruncated returns a copy of the annotations that marks the bodies as left out.
func markTruncated(list []annotation) []annotation {
	others := slices.DeleteFunc(slices.Clone(list), func(a annotation) bool { return a.key == annotationTruncated })
	return append(others, annotation{annotationTruncated, "true"})
}

// appendUser appends u as authentication.k8s.io/v1 UserInfo; {} if u is nil.
func appendUser(b []byte, u *authn.User) []byte {
	if u == nil {
		return append(b, "{}"...)
	}
	b = appendMember(b, `{"username":`, u.Name)
	if u.UID != "" {
		b = appendMember(b, `,"uid":`, u.UID)
	}
	if len(u.Groups) > 0 {
		b = appendStrings(append(b, `,"groups":`...), u.Groups)
	}
	if len(u.Extra) > 0 {
		b = append(b, `,"extra":{`...)
		for i, key := range slices.Sorted(maps.Keys(u.Extra)) {
			if i > 0 {
				b = append(b, ',')
			}
			b = appendStrings(append(appendString(b, key), ':'), u.Extra[key])
		}
		b = append(b, '}')
	}
	return append(b, '}')
}

func appendMember(b []byte, key, value string) []byte { return appendString(append(b, key...), value) }

func appendStrings(b []byte, list []string) []byte {
	b = append(b, '[')
	for i, s := range list {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendString(b, s)
	}
	return append(b, ']')
}

// appendTime appends a time with microseconds. It formats them itself, because package time is faster with layouts
// that have no fraction.
func appendTime(b []byte, t time.Time) []byte {
	t = t.UTC()
	b = t.AppendFormat(append(b, '"'), time.RFC3339)
	b[len(b)-1] = '.' // replaces Z
	for micros, unit := t.Nanosecond()/1000, 100_000; unit > 0; unit /= 10 {
		b = append(b, '0'+byte(micros/unit%10))
	}
	return append(b, `Z"`...)
}

const hex = "0123456789abcdef"

// plain marks the bytes that need no escape in a JSON string.
var plain = func() (is [256]bool) {
	for c := ' '; c < 0x7f; c++ {
		is[c] = c != '"' && c != '\\'
	}
	return is
}()

// appendString appends a JSON string. It escapes characters that end lines or control terminals, so that a value
// chosen by a client cannot pretend to be another event.
func appendString(b []byte, s string) []byte {
	b = append(b, '"')
	start := 0
	for i := 0; i < len(s); {
		c := s[i]
		if plain[c] {
			i++
			continue
		}
		if c < utf8.RuneSelf {
			b = append(b, s[start:i]...)
			switch c {
			case '"', '\\':
				b = append(b, '\\', c)
			case '\n':
				b = append(b, `\n`...)
			case '\t':
				b = append(b, `\t`...)
			case '\r':
				b = append(b, `\r`...)
			default:
				b = append(b, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
			}
			i++
			start = i
			continue
		}
		r, size := utf8.DecodeRuneInString(s[i:])
		if r == utf8.RuneError && size == 1 || r <= 0x9f || r == '\u2028' || r == '\u2029' {
			b = append(b, s[start:i]...)
			b = append(b, '\\', 'u', hex[r>>12&15], hex[r>>8&15], hex[r>>4&15], hex[r&15])
			start = i + size
		}
		i += size
	}
	return append(append(b, s[start:]...), '"')
}

// compacted returns a copy of a JSON document without whitespace. It fails if the document is invalid.
func compacted(doc []byte) ([]byte, error) {
	var b bytes.Buffer
	b.Grow(len(doc))
	if err := json.Compact(&b, doc); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}
