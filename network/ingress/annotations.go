package ingress

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// The annotations of Ingresses that this controller supports.
const (
	annotationPrefix = "coxswain.dev/"

	// AnnotationSSLRedirect is "false" to serve HTTP for a host with TLS instead of a redirect.
	AnnotationSSLRedirect = annotationPrefix + "ssl-redirect"
	// AnnotationBodySize limits a request's body: bytes, or with the suffix k, m or g multiples of 1024, 1024² or
	// 1024³; 0, the default, for no limit.
	AnnotationBodySize = annotationPrefix + "proxy-body-size"
	// AnnotationConnectTimeout limits the time to connect to an endpoint: seconds, 1 to 75; 5 by default.
	AnnotationConnectTimeout = annotationPrefix + "proxy-connect-timeout"
	// AnnotationReadTimeout limits the time until an endpoint's response begins: seconds, 1 to 3600; 60 by default.
	AnnotationReadTimeout = annotationPrefix + "proxy-read-timeout"
)

// settings are the settings of an Ingress's requests by its annotations.
type settings struct {
	redirect bool
	bodySize int64 // 0: no limit
	connect  time.Duration
	response time.Duration
}

var defaultSettings = settings{redirect: true, connect: 5 * time.Second, response: time.Minute}

// parseSettings parses annotations. An invalid one causes a warning, and its default applies.
func parseSettings(annotations map[string]string) (s settings, warnings []string) {
	s = defaultSettings
	read := func(name string, parse func(string) error) {
		if value, ok := annotations[name]; ok {
			if err := parse(value); err != nil {
				warnings = append(warnings, fmt.Sprintf("annotation %s: %v", name, err))
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
	return s, warnings
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

func parseSeconds(text string, maximum int, d *time.Duration) error {
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 || n > maximum {
		return fmt.Errorf("%.40q is not a number of seconds from 1 to %d", text, maximum)
	}
	*d = time.Duration(n) * time.Second
	return nil
}
