package authn

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"

	"github.com/coxswain-dev/coxswain/apiserver/reload"
)

// tokenFile authenticates the tokens of a file, which is read again when it changes.
// https://kubernetes.io/docs/reference/access-authn-authz/authentication/#static-token-file
type tokenFile struct{ users *reload.Files[tokenUsers] }

// tokenUsers maps the digests of tokens to users. The time of a lookup by digest reveals no part of the token.
type tokenUsers map[digest]*User

func openTokenFile(path string, log *slog.Logger) (*tokenFile, error) {
	users, err := reload.Open(log, func(contents [][]byte) (tokenUsers, error) {
		return parseTokens(contents[0])
	}, path)
	if err != nil {
		return nil, fmt.Errorf("authn: token file: %w", err)
	}
	return &tokenFile{users}, nil
}

// parseTokens reads lines with a token, a user, a UID and, in quotes if there are several, groups. Errors do not
// quote the line, as it contains a token.
func parseTokens(content []byte) (tokenUsers, error) {
	lines := csv.NewReader(bytes.NewReader(content))
	lines.FieldsPerRecord = -1
	users := tokenUsers{}
	for {
		record, err := lines.Read()
		if errors.Is(err, io.EOF) {
			return users, nil
		}
		if err != nil {
			return nil, err
		}
		line, _ := lines.FieldPos(0)
		if len(record) < 3 || record[0] == "" || record[1] == "" {
			return nil, fmt.Errorf("line %d: token, user and UID are required", line)
		}
		u := &User{Name: record[1], UID: record[2]}
		if len(record) > 3 {
			for group := range strings.SplitSeq(record[3], ",") {
				if group = strings.TrimSpace(group); group != "" {
					u.Groups = append(u.Groups, group)
				}
			}
		}
		key := sha256.Sum256([]byte(record[0]))
		if users[key] != nil {
			return nil, fmt.Errorf("line %d: duplicate token", line)
		}
		users[key] = authenticated(u)
	}
}

// AuthenticateToken implements TokenAuthenticator.
func (f *tokenFile) AuthenticateToken(_ context.Context, token string, _ []string) (*Identity, bool, error) {
	u := f.users.Current()[sha256.Sum256([]byte(token))]
	return &Identity{User: u}, u != nil, nil
}

// sameSecret compares in a time that does not depend on the position of the first difference.
func sameSecret(a, b []byte) bool { return subtle.ConstantTimeCompare(a, b) == 1 }
