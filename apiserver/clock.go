package apiserver

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/go-chi/chi/v5"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coxswain-dev/coxswain/apiserver/encoding"
	"github.com/coxswain-dev/coxswain/internal/clock/virtualtime"
)

// clockPath is the path at which a *virtualtime.Clock is read (GET) and moved (POST).
const clockPath = "/debug/clock"

// maxClockBody bounds the body of a POST there, in bytes.
const maxClockBody = 1 << 10

// clockMove is the body of a POST: how far to move the clock, or to what time.
type clockMove struct {
	Advance *metav1.Duration `json:"advance,omitempty"`
	To      *time.Time       `json:"to,omitempty"`
}

// clockState is the answer.
type clockState struct {
	Now time.Time `json:"now"`
}

func (s *Server) clockRoutes(r chi.Router, c *virtualtime.Clock) {
	show := func(w http.ResponseWriter, hr *http.Request) error {
		doc, err := json.Marshal(clockState{c.Now().UTC()})
		if err != nil {
			return fmt.Errorf("encode the time: %w", err)
		}
		return s.writeBody(w, hr, encoding.Output{Media: "application/json"}, http.StatusOK, append(doc, '\n'))
	}
	r.Get(clockPath, s.path(show))
	r.Post(clockPath, s.path(func(w http.ResponseWriter, r *http.Request) error {
		if err := moveClock(r, c); err != nil {
			return err
		}
		return show(w, r)
	}))
}

// moveClock moves the clock as a request asks, and returns when the components are idle. If the client disconnects, the
// clock stops at the time that it has reached.
func moveClock(r *http.Request, c *virtualtime.Clock) error {
	body, err := io.ReadAll(io.LimitReader(r.Body, maxClockBody))
	if err != nil {
		return apierrors.NewBadRequest(fmt.Sprintf("reading the body: %v", err))
	}
	var move clockMove
	if err := json.Unmarshal(body, &move); err != nil {
		return apierrors.NewBadRequest(fmt.Sprintf("decoding the body: %v", err))
	}
	if (move.Advance == nil) == (move.To == nil) {
		return apierrors.NewBadRequest(`the body must have either "advance", a duration, or "to", a time`)
	}
	distance := time.Duration(0)
	if move.Advance != nil {
		distance = move.Advance.Duration
	} else {
		distance = c.Until(*move.To)
	}
	if distance < 0 {
		return apierrors.NewBadRequest("the clock cannot go back")
	}
	return c.Advance(r.Context(), distance)
}
