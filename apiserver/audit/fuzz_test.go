package audit

import "testing"

// FuzzParsePolicy checks that an accepted policy decides every request.
func FuzzParsePolicy(f *testing.F) {
	for _, rule := range policyRules {
		f.Add("{apiVersion: audit.k8s.io/v1, kind: Policy, rules: [" + rule + "]}")
	}
	f.Add("apiVersion: audit.k8s.io/v1\nkind: Policy\nomitStages: [RequestReceived]\nrules:\n- level: None\n")
	f.Add("{apiVersion: audit.k8s.io/v1, kind: Policy, rules: [&a {level: Metadata}, *a]}")
	f.Fuzz(func(t *testing.T, text string) {
		policy, err := ParsePolicy([]byte(text))
		if err != nil {
			return
		}
		for _, a := range policyRequests {
			if d := policy.Decide(&a); d.Level < LevelNone || d.Level > LevelRequestResponse {
				t.Fatalf("level %v by %q", d.Level, text)
			}
		}
	})
}
