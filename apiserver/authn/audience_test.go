package authn

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestClaims_ReadAnAudienceStringAndWriteAList(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		`{"aud":"a"}`:       `{"aud":["a"]}`,
		`{"aud":["a"]}`:     `{"aud":["a"]}`,
		`{"aud":["a","b"]}`: `{"aud":["a","b"]}`,
		`{}`:                `{}`,
	} {
		var c claims
		require.NoError(t, json.Unmarshal([]byte(text), &c), text)
		written, err := json.Marshal(struct {
			Audience audience `json:"aud,omitempty"`
		}{c.Audience})
		require.NoError(t, err)
		require.JSONEq(t, want, string(written))
	}
	require.Error(t, json.Unmarshal([]byte(`{"aud":{}}`), &claims{}))
}
