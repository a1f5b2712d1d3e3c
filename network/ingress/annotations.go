package ingress

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// The annotations of an Ingress that this controller knows.
const (
	annotationPrefix = "coxswain.dev/"

	// AnnotationSSLRedirect is "false" where HTTP is served although the host has TLS, in place of a redirect.
	AnnotationSSLRedirect = annotationPrefix + "ssl-redirect"
	// AnnotationBodySize bounds a request's body: bytes, or with the suffix k, m or g those times 1024, 1024² or
	// 1024³; 0 for no bound, which is the default.
	AnnotationBodySize = annotationPrefix + "proxy-body-size"
	// AnnotationConnectTimeout bounds the time for a connection to an endpoint: seconds, 1 to 75; 5 by default.
	AnnotationConnectTimeout = annotationPrefix + "proxy-connect-timeout"
	// AnnotationReadTimeout bounds the time until an endpoint's response begins: seconds, 1 to 3600; 60 by default.
	AnnotationReadTimeout = annotationPrefix + "proxy-read-timeout"
)

// settings are what an Ingress's annotations say about its requests.
type settings struct {
	redirect bool
	bodySize int64 // 0 for no bound
	connect  time.Duration
	response time.Duration
}

var defaultSettings = settings{redirect: true, connect: 5 * time.Second, response: time.Minute}

// parseSettings reads annotations. One that cannot be read leaves its default, and a complaint.
func parseSettings(annotations map[string]string) (s settings, complaints []string) {
	s = defaultSettings
	read := func(name string, parse func(string) error) {
		if value, ok := annotations[name]; ok {
			if err := parse(value); err != nil {
				complaints = append(complaints, fmt.Sprintf("annotation %s: %v", name, err))
			}
		}
	}
	read(AnnotationSSLRedirect, func(v string) error {
		redirect, err := strconv.ParseBool(v)
		if err != nil {
			return fmt.Errorf("%.40q is neither true nor false", v)
		}
		s.redirect = redirect
		return nil
	})
	read(AnnotationBodySize, func(v string) (err error) { s.bodySize, err = parseSize(v); return err })
	read(AnnotationConnectTimeout, func(v string) error { return parseSeconds(v, 75, &s.connect) })
	read(AnnotationReadTimeout, func(v string) error { return parseSeconds(v, 3600, &s.response) })
	return s, complaints
}

func parseSize(text string) (int64, error) {
	digits, shift := text, 0
	if n := len(text) - 1; n > 0 {
		if i := strings.IndexByte("kmg", text[n]|0x20); i >= 0 {
			digits, shift = text[:n], 10*(i+1)
		}
	}
	size, err := strconv.ParseInt(digits, 10, 64)
	if err != nil || size < 0 || size > math.MaxInt64>>shift {
		return 0, fmt.Errorf("%.40q is not a size such as 8m", text)
	}
	return size << shift, nil
}

func parseSeconds(text string, most int, d *time.Duration) error {
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 || n > most {
		return fmt.Errorf("%.40q is not a number of seconds from 1 to %d", text, most)
	}
	*d = time.Duration(n) * time.Second
	return nil
}
