{{/* The text of a file of manifests/, in the release's namespace: list CONTEXT FILE. */}}
{{- define "volcano-elastic.source" -}}
{{- $context := index . 0 -}}
{{- $text := $context.Files.Get (printf "files/manifests/%s" (index . 1)) -}}
{{- required (printf "the chart lacks files/manifests/%s" (index . 1)) $text | replace "volcano-elastic-system" $context.Release.Namespace -}}
{{- end -}}

{{- define "volcano-elastic.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end -}}
