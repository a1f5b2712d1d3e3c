package core

import (
	"net/url"
	"strconv"

	"github.com/coxswain-dev/coxswain/api"
)

// The options of connect requests to nodes, pods and services. Admission policies see them.

// proxyTo returns the subresource that proxies requests to a node, a pod or a service.
func proxyTo(kind string) api.Subresource {
	return api.Subresource{Name: "proxy", Version: "v1", Kind: kind, Verbs: []string{"create", "delete", "get", "patch",
		"update"}, Connect: true, ConnectOptions: proxyOptions}
}

func proxyOptions(_ url.Values, path string) map[string]any { return map[string]any{"path": path} }

func attachOptions(query url.Values, _ string) map[string]any {
	doc := map[string]any{}
	for _, name := range []string{"stdin", "stdout", "stderr", "tty"} {
		if values, ok := query[name]; ok && values[0] != "0" && values[0] != "false" {
			doc[name] = true
		}
	}
	if container := query.Get("container"); container != "" {
		doc["container"] = container
	}
	return doc
}

func execOptions(query url.Values, path string) map[string]any {
	doc := attachOptions(query, path)
	doc["command"] = append([]string{}, query["command"]...)
	return doc
}

func portForwardOptions(query url.Values, _ string) map[string]any {
	ports := []int64{}
	for _, text := range query["ports"] {
		if port, err := strconv.ParseInt(text, 10, 32); err == nil {
			ports = append(ports, port)
		}
	}
	return map[string]any{"ports": ports}
}
