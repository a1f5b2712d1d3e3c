package audit

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// appendLegacy appends the event in the format of --audit-log-format=legacy.
func (e *event) appendLegacy(b []byte) []byte {
	user, groups := "<none>", "<none>"
	if e.user != nil && e.user.Name != "" {
		user = e.user.Name
		if len(e.user.Groups) > 0 {
			groups = quoted(e.user.Groups)
		}
	}
	as, asGroups := "<self>", "<lookup>"
	if e.impersonated != nil {
		as = e.impersonated.Name
		if e.impersonated.Groups != nil {
			asGroups = quoted(e.impersonated.Groups)
		}
	}
	namespace, response, ip := "<none>", "<deferred>", "<unknown>"
	if e.object.namespace != "" {
		namespace = e.object.namespace
	}
	if e.code != 0 {
		response = strconv.Itoa(e.code)
	}
	if len(e.ips) > 0 {
		ip = e.ips[0]
	}
	return fmt.Appendf(b, "%s AUDIT: id=%q stage=%q ip=%q method=%q user=%q groups=%q as=%q asgroups=%q user-agent=%q "+
		"namespace=%q uri=%q response=\"%s\"\n", e.received.UTC().Format(time.RFC3339Nano), e.id, e.stage.String(), ip,
		e.verb, user, groups, as, asGroups, e.agent, namespace, e.uri, response)
}

func quoted(list []string) string {
	all := make([]string, len(list))
	for i, s := range list {
		all[i] = strconv.Quote(s)
	}
	return strings.Join(all, ",")
}
