// Package manualclock answers the requests that read and move a clock by hand.
package manualclock

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coxswain-dev/coxswain/internal/clock/virtualtime"
)

// Path is the path at which the clock is read (GET) and moved (POST).
const Path = "/debug/clock"

// maxBody bounds the body of a POST, in bytes.
const maxBody = 1 << 10

// move is the body of a POST: how far to move the clock, or to what time.
type move struct {
	Advance *metav1.Duration `json:"advance,omitempty"`
	To      *time.Time       `json:"to,omitempty"`
}

// state is the answer.
type state struct {
	Now time.Time `json:"now"`
}

// Answer returns the answer to a request.
func Answer(r *http.Request, c *virtualtime.Clock) (any, error) {
	if r.Method == http.MethodPost {
		if err := moveClock(r, c); err != nil {
			return nil, err
		}
	}
	return state{c.Now().UTC()}, nil
}

// moveClock moves the clock as a request asks, and returns when the components are idle. If the client disconnects, the
// clock stops at the time that it has reached.
func moveClock(r *http.Request, c *virtualtime.Clock) error {
	body, err := io.ReadAll(io.LimitReader(r.Body, maxBody))
	if err != nil {
		return apierrors.NewBadRequest(fmt.Sprintf("reading the body: %v", err))
	}
	var m move
	if err := json.Unmarshal(body, &m); err != nil {
		return apierrors.NewBadRequest(fmt.Sprintf("decoding the body: %v", err))
	}
	if (m.Advance == nil) == (m.To == nil) {
		return apierrors.NewBadRequest(`the body must have either "advance", a duration, or "to", a time`)
	}
	distance := time.Duration(0)
	if m.Advance != nil {
		distance = m.Advance.Duration
	} else {
		distance = c.Until(*m.To)
	}
	if distance < 0 {
		return apierrors.NewBadRequest("the clock cannot go back")
	}
	return c.Advance(r.Context(), distance)
}
